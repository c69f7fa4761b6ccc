#include "comm/process/process_endpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "comm/nccl/nccl_group.h"

namespace pleat::comm {

ProcessEndpoint::ProcessEndpoint(int rank, int size, Board& board, Watchdog::View view,
                                 const Options& options)
    : rank_(rank),
      size_(size),
      board_(board),
      options_(options),
      watchdog_(std::make_unique<Watchdog>(std::move(view), options)) {}

std::unique_ptr<Communicator> ProcessEndpoint::group(const std::string& name, std::span<const int> ranks,
                                                     Buffers buffers, void* stream) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank_);
  if (found == ranks.end())
    base::fail("group '{}' of ranks {} does not contain rank {}, which asks for it", name,
               fmt::join(ranks, " "), rank_);
  for (const int r : ranks) {
    if (r < 0 || r >= size_ || std::count(ranks.begin(), ranks.end(), r) != 1)
      base::fail("group '{}' of ranks {}: rank {} is there twice or not in the world of {}", name,
                 fmt::join(ranks, " "), r, size_);
  }
  const int member = static_cast<int>(found - ranks.begin());
  watchdog_->add_group(name, ranks);
  std::unique_ptr<Communicator> made;
  // Of a group of its own, whose calls are not those of the opened one.
  recorded(name + " (opening)", "opening the group", ranks, [&] {
    made = buffers == Buffers::Host ? host_group(name, ranks, member)
                                    : device_group(name, ranks, member, stream);
  });
  return made;
}

std::unique_ptr<Communicator> ProcessEndpoint::device_group(const std::string& name,
                                                            std::span<const int> ranks, int member,
                                                            void* stream) {
  if (!nccl_is_built_in())
    base::fail("group '{}': ranks on several GPUs talk over NCCL, and this program was built without it",
               name);
  const std::string meeting = name + " (meeting)";
  watchdog_->add_group(meeting, ranks);
  const std::unique_ptr<Communicator> host = host_group(meeting, ranks, member);
  NcclId id{};
  if (member == 0) id = make_nccl_id();
  host->broadcast("id", id, 0);
  return make_nccl_group(name, {ranks.begin(), ranks.end()}, member, id, stream, flight());
}

void ProcessEndpoint::run(const std::function<void(Endpoint&)>& fn) {
  try {
    fn(*this);
    std::vector<int> all(static_cast<size_t>(size_));
    std::iota(all.begin(), all.end(), 0);
    recorded(kClosing, "end of the run", all, [this] { meet_all(); });
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

void ProcessEndpoint::recorded(const std::string& name, const char* stage, std::span<const int> ranks,
                               const std::function<void()>& work) {
  watchdog_->add_group(name, ranks);
  FlightEntry entry;
  entry.group_hash = group_hash(name, ranks);
  entry.operation = Operation::Barrier;
  std::memcpy(entry.group, name.data(), std::min(name.size(), sizeof entry.group - 1));
  std::strcpy(entry.stage, stage);
  const int slot = board_.own().begin(entry);
  work();
  board_.own().end(slot, FlightState::Done);
}

}  // namespace pleat::comm
