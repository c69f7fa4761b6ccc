// A barrier of threads that blocks (there may be many more ranks than cores) and can be called off.
//
// Completion and calling off go through one word, so that all ranks see the same outcome: either every rank
// of a round gets through, or, from the call-off on, none does. A rank that got through may therefore rely on
// the others' posted memory; one that was turned away may free its own.
#pragma once

#include <atomic>
#include <cstdint>

namespace pleat::comm::local {

class Barrier {
 public:
  explicit Barrier(int size) : size_(static_cast<uint32_t>(size)) {}

  // False when the barrier was called off before all had come.
  bool arrive_and_wait() {
    const uint32_t round = word_.load(std::memory_order_acquire);
    if (round & kCalledOff) return false;
    if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      num_arrived_.store(0, std::memory_order_relaxed);
      uint32_t expected = round;
      const bool complete =
          word_.compare_exchange_strong(expected, round + kRound, std::memory_order_acq_rel);
      word_.notify_all();
      return complete;
    }
    uint32_t now = word_.load(std::memory_order_acquire);
    while (now == round) {
      word_.wait(round, std::memory_order_acquire);
      now = word_.load(std::memory_order_acquire);
    }
    return (now | kCalledOff) != (round | kCalledOff);
  }

  void call_off() {
    word_.fetch_or(kCalledOff, std::memory_order_acq_rel);
    word_.notify_all();
  }

 private:
  static constexpr uint32_t kCalledOff = 1, kRound = 2;
  const uint32_t size_;
  std::atomic<uint32_t> word_{0}, num_arrived_{0};
};

}  // namespace pleat::comm::local
