// How much memory of the GPU the library takes for a group as its calls are made: connections are made by the first call
// that needs them, so the memory is looked at around the first call of every kind and to every peer, and at no other.
//
// The device tells what is free on it as a whole: where ranks share a GPU, what another takes meanwhile is counted here.
#pragma once

#include <atomic>
#include <set>
#include <utility>

#include "comm/call.h"

namespace pleat::comm::nccl {

class MemoryMeter {
 public:
  explicit MemoryMeter(int64_t taken) : taken_(taken) {}

  // Before a call goes to the library; not while a stream is captured.
  void before(const Call& call);
  // Behind it, or behind the last of several that are one.
  void after();
  int64_t taken() const { return taken_; }  // any thread

 private:
  std::set<std::pair<Operation, int>> seen_;
  int64_t free_before_ = -1;  // -1: nothing new is being done
  std::atomic<int64_t> taken_;
};

}  // namespace pleat::comm::nccl
