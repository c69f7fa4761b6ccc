#include "device/near_cpus.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>

#include "base/error.h"

namespace pleat::device {
namespace {

constexpr int kMaxCpus = 8192;  // as many as Linux can be built for

struct FreeCpuSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};
using CpuSet = std::unique_ptr<cpu_set_t, FreeCpuSet>;
const size_t kSetBytes = CPU_ALLOC_SIZE(kMaxCpus);

CpuSet empty_set() {
  CpuSet set(CPU_ALLOC(kMaxCpus));
  PLEAT_CHECK(set, "no memory for a set of processors");
  CPU_ZERO_S(kSetBytes, set.get());
  return set;
}

// The only line of a file; none when it cannot be read.
std::optional<std::string> line_of(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!in || (!std::getline(in, line) && !in.eof())) return std::nullopt;
  return line;
}

int number_of(const std::string& text, const std::string& whole) {
  if (text.empty() || text.size() > 5 || text.find_first_not_of("0123456789") != std::string::npos ||
      std::stoi(text) >= kMaxCpus)
    base::fail("'{}' is no list of processors; needed numbers below {} and ranges, as in 0-3,8", whole,
               +kMaxCpus);
  return std::stoi(text);
}

// While threads start, others may be missed: what they start inherits from who was bound.
void bind_threads(const Cpus& cpus) {
  const CpuSet set = empty_set();
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), kSetBytes, set.get());
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const int thread = std::stoi(task.path().filename().string());
    if (sched_setaffinity(thread, kSetBytes, set.get()) != 0 && errno != ESRCH)
      base::fail_with(base::ExitCode::Hardware, "cannot bind threads to processors {}: {}", cpu_list(cpus),
                      std::strerror(errno));
  }
}

std::mutex remark_mutex;
std::string remark;

}  // namespace

Cpus parse_cpu_list(const std::string& text) {
  Cpus cpus;
  if (text.empty()) return cpus;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t dash = part.find('-');
    const int first = number_of(part.substr(0, dash), text);
    const int last = dash == std::string::npos ? first : number_of(part.substr(dash + 1), text);
    if (last < first)
      base::fail("'{}' is no list of processors: the range {} ends before it begins", text, part);
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  if (text.back() == ',') number_of("", text);
  return cpus;
}

std::string cpu_list(const Cpus& cpus) {
  std::string out;
  for (auto at = cpus.begin(); at != cpus.end();) {
    const int first = *at;
    int last = first;
    while (++at != cpus.end() && *at == last + 1) last = *at;
    out += fmt::format("{}{}", out.empty() ? "" : ",", first);
    if (last > first) out += fmt::format("-{}", last);
  }
  return out;
}

NearCpus choose_near_cpus(const std::string& bus, const Cpus& allowed, const Cpus& online,
                          const std::optional<Cpus>& near) {
  if (!near || near->empty())
    return {{},
            fmt::format("threads are not bound: the system does not tell which processors are near {}", bus)};
  Cpus both;
  std::set_intersection(allowed.begin(), allowed.end(), near->begin(), near->end(),
                        std::inserter(both, both.end()));
  if (!std::includes(allowed.begin(), allowed.end(), online.begin(), online.end()))
    return {{},
            fmt::format("threads keep processors {}, where the process was put; {} of them near {} ({})",
                        cpu_list(allowed), both.empty() ? "none" : fmt::format("{}", both.size()), bus,
                        cpu_list(*near))};
  if (both.size() == allowed.size())
    return {{}, fmt::format("threads are not bound: all processors are near {}", bus)};
  if (both.empty())
    return {{},
            fmt::format("threads are not bound: none of the processors near {} ({}) is online", bus,
                        cpu_list(*near))};
  std::string text = fmt::format("threads are bound to processors {}, near {}", cpu_list(both), bus);
  return {std::move(both), std::move(text)};
}

std::optional<Cpus> read_near_cpus(const std::string& bus, const std::string& sys) {
  std::string name = bus;  // CUDA writes it in capitals, Linux does not
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::optional<std::string> line =
      line_of(fmt::format("{}/bus/pci/devices/{}/local_cpulist", sys, name));
  if (!line) return std::nullopt;
  return parse_cpu_list(*line);
}

Cpus read_online_cpus(const std::string& sys) {
  const std::optional<std::string> line = line_of(sys + "/devices/system/cpu/online");
  return line ? parse_cpu_list(*line) : Cpus{};
}

Cpus allowed_cpus() {
  const CpuSet set = empty_set();
  Cpus cpus;
  if (sched_getaffinity(0, kSetBytes, set.get()) != 0) return cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu)
    if (CPU_ISSET_S(static_cast<size_t>(cpu), kSetBytes, set.get())) cpus.insert(cpu);
  return cpus;
}

std::string bind_near_gpu(const std::string& bus) {
  const NearCpus chosen = choose_near_cpus(bus, allowed_cpus(), read_online_cpus(), read_near_cpus(bus));
  if (!chosen.bind_to.empty()) bind_threads(chosen.bind_to);
  const std::lock_guard lock(remark_mutex);
  return remark = chosen.remark;
}

std::string near_cpus_remark() {
  const std::lock_guard lock(remark_mutex);
  return remark;
}

}  // namespace pleat::device
