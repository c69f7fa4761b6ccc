#include "comm/enqueued.h"

#include "base/error.h"
#include "comm/same_call.h"

namespace pleat::comm {

void EnqueuedCommunicator::record(const Call& call, const FlightEntry& entry) {
  const std::lock_guard lock(mutex_);
  if (capturing()) {
    execute(call);
    captured_.push_back(entry);
    return;
  }
  settle();
  // Before it is made: to put the first calls on the stream, ranks may have to meet.
  under_way_.push_back(entry);
  under_way_.back().enqueued_ns = steady_ns();
  show_oldest();
  try {
    if (host_ && call.operation < Operation::Send) require_same_call(*host_, *this, call);
    execute(call);
  } catch (...) {
    if (under_way_.size() == first_ + 1) {
      flight().end(slot_, FlightState::Failed);
      slot_ = -1;
    }
    under_way_.pop_back();
    throw;
  }
}

bool EnqueuedCommunicator::watch() {
  const std::lock_guard lock(mutex_);
  settle();
  if (first_ == under_way_.size()) return true;
  if (const std::string why = fault(); !why.empty()) fail(why);
  return false;
}

int EnqueuedCommunicator::captured() {
  const std::lock_guard lock(mutex_);
  graphs_.push_back(std::move(captured_));
  captured_.clear();
  return static_cast<int>(graphs_.size()) - 1;
}

void EnqueuedCommunicator::launched(int captured) {
  const std::lock_guard lock(mutex_);
  settle();
  for (FlightEntry entry : graphs_.at(static_cast<size_t>(captured))) {
    entry.sequence = next_sequence(entry.operation);
    entry.enqueued_ns = steady_ns();
    under_way_.push_back(entry);
  }
  show_oldest();
}

// What the device has done since the last look leaves.
void EnqueuedCommunicator::settle() {
  for (const uint64_t done = num_done(); num_settled_ < done && first_ < under_way_.size(); ++num_settled_) {
    show_oldest();
    flight().end(slot_, FlightState::Done);
    slot_ = -1;
    ++first_;
  }
  if (first_ == under_way_.size()) {
    under_way_.clear();  // keeps its memory: a step allocates nothing
    first_ = 0;
  }
  show_oldest();
}

void EnqueuedCommunicator::show_oldest() {
  if (slot_ < 0 && first_ < under_way_.size()) slot_ = flight().begin(under_way_[first_]);
}

void EnqueuedCommunicator::fail(const std::string& why) {
  const FlightEntry oldest = under_way_[first_];
  flight().end(slot_, FlightState::Failed);
  slot_ = -1;
  under_way_.clear();
  first_ = 0;
  base::fail_with(base::ExitCode::Retry, "group '{}', {} #{} of stage '{}' on rank {}: {}", name(),
                  name_of(oldest.operation), oldest.sequence, oldest.stage,
                  world_ranks()[static_cast<size_t>(rank())], why);
}

}  // namespace pleat::comm
