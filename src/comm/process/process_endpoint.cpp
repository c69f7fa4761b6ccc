#include "comm/process/process_endpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "comm/nccl/nccl_group.h"
#include "comm/windows/windows.h"

namespace pleat::comm {
namespace {

// What all ranks of the world open together over NCCL is recorded under one name, so that they can be compared.
constexpr const char* kNcclOpening = "NCCL (opening)";

std::vector<int> all_ranks(int size) {
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

ProcessEndpoint::ProcessEndpoint(int rank, int size, Board& board, Watchdog::View view,
                                 const Options& options)
    : rank_(rank),
      size_(size),
      board_(board),
      options_(options),
      watchdog_(std::make_unique<Watchdog>(std::move(view), options)) {}

int ProcessEndpoint::member_of(const std::string& name, std::span<const int> ranks) const {
  const auto found = std::find(ranks.begin(), ranks.end(), rank_);
  if (found == ranks.end())
    base::fail("group '{}' of ranks {} does not contain rank {}, which asks for it", name,
               fmt::join(ranks, " "), rank_);
  for (const int r : ranks) {
    if (r < 0 || r >= size_ || std::count(ranks.begin(), ranks.end(), r) != 1)
      base::fail("group '{}' of ranks {}: rank {} is there twice or not in the world of {}", name,
                 fmt::join(ranks, " "), r, size_);
  }
  return static_cast<int>(found - ranks.begin());
}

std::unique_ptr<Communicator> ProcessEndpoint::group(const std::string& name, std::span<const int> ranks,
                                                     Buffers buffers, void* stream) {
  if (buffers == Buffers::Device) {
    const WantedGroup one{name, {ranks.begin(), ranks.end()}, stream};
    return std::move(groups({&one, 1}, buffers).front());
  }
  const int member = member_of(name, ranks);
  watchdog_->add_group(name, ranks);
  std::unique_ptr<Communicator> made;
  // Of a group of its own, whose calls are not those of the opened one.
  recorded(name + " (opening)", "opening the group", ranks, [&] { made = host_group(name, ranks, member); });
  return made;
}

std::vector<std::unique_ptr<Communicator>> ProcessEndpoint::groups(std::span<const WantedGroup> wanted,
                                                                   Buffers buffers) {
  if (buffers == Buffers::Host) return Endpoint::groups(wanted, buffers);
  if (!nccl_is_built_in())
    base::fail("{}: ranks on several GPUs talk over NCCL, and this program was built without it",
               wanted.empty() ? "groups of other ranks" : "group '" + wanted.front().name + "'");
  for (const WantedGroup& w : wanted) {
    member_of(w.name, w.ranks);
    watchdog_->add_group(w.name, w.ranks);
  }
  return device_groups().open(wanted);
}

DeviceGroups& ProcessEndpoint::device_groups() {
  if (device_groups_) return *device_groups_;
  DeviceGroups::Process process;
  process.rank = rank_;
  process.size = size_;
  process.host_group = [this](const std::string& name, std::span<const int> ranks) {
    watchdog_->add_group(name, ranks);
    return host_group(name, ranks, member_of(name, ranks));
  };
  process.recorded = [this](std::string_view stage, uint64_t sequence, const std::function<void()>& work) {
    recorded(kNcclOpening, stage, all_ranks(size_), work, sequence);
  };
  process.make_id = make_nccl_id;
  process.start = [this](const NcclId& id) { return make_nccl_world(id, rank_, size_); };
  process.flight = &flight();
  process.inject = options_.inject;
  process.check = options_.check;
  device_groups_ = std::make_unique<DeviceGroups>(std::move(process));
  return *device_groups_;
}

std::string ProcessEndpoint::why_no_windows(std::span<const int> ranks, Buffers buffers) {
  if (buffers == Buffers::Host) return "ranks are processes, which share no memory of the host";
  return why_out_of_reach(*group(fmt::format("reach:{}", ranks.front()), ranks, Buffers::Host, nullptr));
}

std::unique_ptr<SharedWindows> ProcessEndpoint::share_windows(std::span<const int> ranks, Buffers buffers,
                                                              const std::shared_ptr<std::byte>& memory) {
  if (buffers == Buffers::Host) base::fail("ranks are processes, which share no memory of the host");
  return share_among_gpus(
      *group(fmt::format("sharing windows:{}", ranks.front()), ranks, Buffers::Host, nullptr), memory.get());
}

std::unique_ptr<Communicator> ProcessEndpoint::window_group(const std::string& name,
                                                            std::span<const int> ranks,
                                                            SharedWindows& windows, Buffers, void* stream) {
  watchdog_->add_group(name, ranks);
  return make_window_group(name, {ranks.begin(), ranks.end()}, windows, stream, options_.timeout_seconds,
                           flight());
}

void ProcessEndpoint::run(const std::function<void(Endpoint&)>& fn) {
  try {
    fn(*this);
    recorded(kClosing, "end of the run", all_ranks(size_), [this] { meet_all(); });
    board_.own().leave();
  } catch (const base::Error& e) {
    fail(e.code(), e.what());
    throw;
  } catch (const std::exception& e) {
    fail(base::ExitCode::Internal, e.what());
    throw;
  }
}

void ProcessEndpoint::fail(base::ExitCode code, const std::string& why) {
  board_.own().fail(why);
  if (code != base::ExitCode::Retry && code != base::ExitCode::Internal && !board_.own().failed_in_call())
    return;
  uint32_t free = 0;
  if (!board_.claim().compare_exchange_strong(free, 1)) return;
  const std::string table = watchdog_->table_of_failure(rank_);
  fmt::print(stderr, "pleat: rank {} failed: {}\n{}", rank_, why, table.empty() ? watchdog_->table() : table);
}

void ProcessEndpoint::recorded(const std::string& name, std::string_view stage, std::span<const int> ranks,
                               const std::function<void()>& work, uint64_t sequence) {
  watchdog_->add_group(name, ranks);
  FlightEntry entry;
  entry.group_hash = group_hash(name, ranks);
  entry.sequence = sequence;
  entry.operation = Operation::Barrier;
  std::memcpy(entry.group, name.data(), std::min(name.size(), sizeof entry.group - 1));
  std::memcpy(entry.stage, stage.data(), std::min(stage.size(), sizeof entry.stage - 1));
  const int slot = board_.own().begin(entry);
  work();
  board_.own().end(slot, FlightState::Done);
}

}  // namespace pleat::comm
