#include "comm/process/board.h"

#include <unistd.h>

namespace pleat::comm {
namespace {

struct BoardHeader {
  std::atomic<uint32_t> claim;
};
constexpr size_t kLine = 64;

// The same address modulo a page in every process, so all make the same step.
std::byte* aligned(void* memory) {
  auto* start = static_cast<std::byte*>(memory);
  return start + (kLine - reinterpret_cast<uintptr_t>(start) % kLine) % kLine;
}

}  // namespace

size_t Board::bytes_for(size_t num_ranks) { return kLine + kLine + num_ranks * sizeof(RankFlight); }

Board::Board(void* memory, std::vector<int> members, size_t place)
    : start_(aligned(memory)),
      members_(std::move(members)),
      flights_(reinterpret_cast<RankFlight*>(start_ + kLine)),
      own_(flights_ + place) {
  own_->start(getpid());
}

std::atomic<uint32_t>& Board::claim() { return reinterpret_cast<BoardHeader*>(start_)->claim; }

Watchdog::View Board::view(int world_size) {
  Watchdog::View view;
  view.flights.resize(static_cast<size_t>(world_size), nullptr);
  for (size_t i = 0; i < members_.size(); ++i) view.flights[static_cast<size_t>(members_[i])] = flights_ + i;
  view.own = {members_[static_cast<size_t>(own_ - flights_)]};
  view.processes = true;
  view.self = own_;
  view.claim = &claim();
  return view;
}

}  // namespace pleat::comm
