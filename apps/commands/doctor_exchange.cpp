#include "doctor_exchange.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "base/host_name.h"
#include "comm/gpu_choice.h"
#include "device/cuda/chosen.h"
#include "device/cuda/cuda.h"
#include "device/near_cpus.h"
#include "runtime/rank_setup.h"
#include "schedule/ranks.h"

namespace pleat::apps {
namespace {

std::vector<int> all_of(int size) {
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// A text of one rank, the same on all; "" where it has none.
std::string told_by_lowest(comm::Communicator& world, const std::string& text) {
  int64_t first = text.empty() ? world.size() : world.rank();
  world.all_reduce("doctor fault", std::span(&first, 1), comm::Reduce::Min);
  if (first == world.size()) return "";
  std::array<char, 256> told{};
  std::memcpy(told.data(), text.data(), std::min(text.size(), told.size() - 1));
  world.broadcast("doctor fault", std::as_writable_bytes(std::span(told)), static_cast<int>(first));
  return told.data();
}

// What all groups of a kind have to say. A rank that is in none takes part with nothing.
DoctorResult put_together(comm::Communicator& world, DoctorResult mine) {
  std::vector<int64_t> facts = {static_cast<int64_t>(mine.operations.size()), mine.size};
  world.all_reduce("doctor operations", std::span(facts), comm::Reduce::Max);
  mine.size = static_cast<int>(facts[1]);
  const bool member = !mine.operations.empty();
  mine.operations.resize(static_cast<size_t>(facts[0]));
  for (comm::Exercised& e : mine.operations) {
    e.operation = told_by_lowest(world, e.operation);
    e.fault = told_by_lowest(world, e.fault);
    world.all_reduce("doctor latency", std::span(&e.latency_seconds, 1), comm::Reduce::Max);
    if (!member) e.bytes_per_second = std::numeric_limits<double>::infinity();
    world.all_reduce("doctor rate", std::span(&e.bytes_per_second, 1), comm::Reduce::Min);
  }
  return mine;
}

}  // namespace

std::vector<DoctorGroup> world_and_pairs(int size, int rank) {
  std::vector<DoctorGroup> groups = {{"world", all_of(size), ""}};
  if (size > 2 && size % 2 == 0) groups.push_back({"pair", {rank / 2 * 2, rank / 2 * 2 + 1}, ""});
  return groups;
}

std::vector<DoctorGroup> groups_of_layout(const config::Config& config, int size, int rank) {
  const layout::Layout layout = schedule::layout_of(config, size);
  struct Kind {
    std::string name, also;
    std::vector<std::vector<int>> by_rank;
  };
  std::vector<Kind> kinds;
  for (int g = 1; g < program::kNumGroups; ++g) {
    const auto group = static_cast<program::Group>(g);
    Kind kind{std::string(name_of(group)), "", {}};
    bool several = false;
    for (int r = 0; r < size; ++r) {
      std::vector<int> members = schedule::group_members(layout, r, group);
      if (std::find(members.begin(), members.end(), r) == members.end()) members.clear();
      several |= members.size() > 1;
      kind.by_rank.push_back(std::move(members));
    }
    if (!several) continue;
    const auto same = std::find_if(kinds.begin(), kinds.end(),
                                   [&](const Kind& other) { return other.by_rank == kind.by_rank; });
    if (same == kinds.end())
      kinds.push_back(std::move(kind));
    else
      same->also += (same->also.empty() ? "" : ", ") + kind.name;
  }
  std::vector<DoctorGroup> groups;
  for (Kind& kind : kinds)
    groups.push_back(
        {std::move(kind.name), std::move(kind.by_rank[static_cast<size_t>(rank)]), std::move(kind.also)});
  return groups;
}

std::vector<DoctorResult> exercise_groups(comm::Endpoint& endpoint, const std::vector<DoctorGroup>& groups,
                                          comm::Buffers buffers, const comm::ExerciseSize& size) {
  const bool gpu = buffers == comm::Buffers::Device;
  const char* where = gpu ? "GPU" : "host";
  const auto world = endpoint.group(fmt::format("doctor, {}", where), all_of(endpoint.size()));
  std::vector<DoctorResult> results;
  for (const DoctorGroup& g : groups) {
    DoctorResult mine{g.name, static_cast<int>(g.ranks.size()), buffers, {}, 0, g.also};
    const auto memory = gpu ? comm::exercise_on_gpu() : comm::exercise_on_host();
    std::vector<comm::WantedGroup> wanted;
    if (!g.ranks.empty()) wanted.push_back({g.name, g.ranks, memory->stream()});
    // Also with none: groups of GPUs are opened by all ranks together.
    const std::vector<std::unique_ptr<comm::Communicator>> opened = endpoint.groups(wanted, buffers);
    if (!opened.empty()) {
      comm::Communicator& group = *opened.front();
      const auto words = gpu ? endpoint.group(g.name + " (words)", g.ranks) : nullptr;
      mine.operations = comm::exercise(group, words ? *words : group, *memory, size);
      mine.device_bytes = group.device_bytes();
    }
    // A group of GPUs ends at once: nobody may still be in a call of it.
    world->barrier("doctor end");
    results.push_back(put_together(*world, std::move(mine)));
  }
  return results;
}

RankGpu take_gpu_of_rank(const comm::World& world) {
  RankGpu out;
  out.machine = base::host_name();
  std::string why;
  const int num_gpus = device::cuda::num_devices(&why);
  if (num_gpus == 0) base::fail_with(base::ExitCode::Hardware, "rank {} has no GPU: {}", world.rank, why);
  out.gpu = comm::gpu_of(world, num_gpus);
  device::cuda::choose_device(out.gpu);
  out.bus = device::cuda::device_bus();
  out.name = device::cuda::facts().name;
  for (const std::string& bus : device::cuda::reachable_buses())
    out.reaches += (out.reaches.empty() ? "" : " ") + bus;
  out.threads = device::bind_near_gpu(out.bus);
  return out;
}

std::vector<RankGpu> gpus_of_ranks(comm::Endpoint& endpoint, const RankGpu& mine) {
  using Line = std::array<char, 1024>;
  const auto n = static_cast<size_t>(endpoint.size());
  const std::string text = fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n", mine.gpu, mine.machine, mine.name,
                                       mine.bus, mine.reaches, mine.threads);
  Line line{};
  std::memcpy(line.data(), text.data(), std::min(text.size(), line.size() - 1));
  std::vector<Line> lines(n);
  endpoint.group("doctor's GPUs", all_of(endpoint.size()))
      ->all_gather("doctor gpus", std::as_bytes(std::span(&line, 1)),
                   std::as_writable_bytes(std::span(lines)));
  std::vector<RankGpu> out(n);
  for (size_t r = 0; r < n; ++r) {
    std::istringstream words(lines[r].data());
    std::string gpu;
    std::getline(words, gpu);
    out[r].gpu = std::stoi(gpu);
    for (std::string* field : {&out[r].machine, &out[r].name, &out[r].bus, &out[r].reaches, &out[r].threads})
      std::getline(words, *field);
  }
  return out;
}

}  // namespace pleat::apps
