#include "device/cpu/host_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

namespace pleat::device {
namespace {

std::string text_of(const char* path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// -1 where there is no number: no file, or "max".
int64_t number_of(std::string_view text) {
  int64_t value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

int64_t kib_of(std::string_view meminfo, std::string_view key) {
  const size_t at = meminfo.find(key);
  if (at == std::string_view::npos) return -1;
  const size_t digits = meminfo.find_first_of("0123456789", at + key.size());
  return digits == std::string_view::npos ? -1 : number_of(meminfo.substr(digits));
}

}  // namespace

int64_t available_of(std::string_view meminfo) {
  const int64_t memory = kib_of(meminfo, "MemAvailable:");
  if (memory < 0) return -1;
  return (memory + std::max<int64_t>(0, kib_of(meminfo, "SwapFree:"))) * 1024;
}

int64_t total_of(std::string_view meminfo) {
  const int64_t memory = kib_of(meminfo, "MemTotal:");
  if (memory < 0) return -1;
  return (memory + std::max<int64_t>(0, kib_of(meminfo, "SwapTotal:"))) * 1024;
}

AvailableMemory available_host_memory() {
  const std::string meminfo = text_of("/proc/meminfo");
  AvailableMemory out{available_of(meminfo), total_of(meminfo), "the machine's memory"};
  // Files in the cache are given back, so they are room.
  const int64_t limit = number_of(text_of("/sys/fs/cgroup/memory.max"));
  const int64_t used = number_of(text_of("/sys/fs/cgroup/memory.current"));
  if (limit >= 0 && used >= 0) {
    const std::string stat = text_of("/sys/fs/cgroup/memory.stat");
    const size_t at = stat.find("\nfile ");
    const int64_t cached =
        at == std::string::npos ? 0 : std::max<int64_t>(0, number_of(std::string_view(stat).substr(at + 6)));
    const int64_t room = std::max<int64_t>(0, limit - std::max<int64_t>(0, used - cached));
    if (out.bytes < 0 || room < out.bytes) out = {room, limit, "the limit of its control group"};
  }
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    const int64_t pages = number_of(text_of("/proc/self/statm"));
    const int64_t all = static_cast<int64_t>(space.rlim_cur);
    const int64_t room = std::max<int64_t>(0, all - std::max<int64_t>(0, pages) * sysconf(_SC_PAGESIZE));
    if (out.bytes < 0 || room < out.bytes) out = {room, all, "the address space that ulimit -v allows"};
  }
  return out;
}

}  // namespace pleat::device
