// Interleaved pipelines in rounds that all ranks have in common: in a round a rank computes at most one forward and then
// at most one backward, and a message that is sent in a round is received in the same one, behind the forwards or
// behind the backwards. Whoever keeps that order can wait for every message where it is sent: the round and its half
// only grow along any wait, so no ring of waits exists.
//
// The interleaved order has two more warm-up forwards per rank to the front for exactly this: a result is needed one
// round after it was made. With equal chunks and free messages a step still takes (m v + p - 1) forwards and backwards.
#pragma once

#include <cstddef>
#include <vector>

#include "schedule/pipeline_order.h"

namespace pleat::schedule {

// Where what a slot of `shape.rank` needs comes from: the slot of another rank. Its rank is -1 where the slot needs
// nothing of others.
struct Producer {
  int rank = -1;
  Slot slot;
};
Producer producer_of(const PipelineShape& shape, const Slot& slot);

class PipelineRounds {
 public:
  // Each slot of each rank has the earliest round it can; `shape.rank` is not looked at.
  explicit PipelineRounds(const PipelineShape& shape);
  int round(int rank, const Slot& slot) const { return rounds_[index(rank, slot)]; }

 private:
  size_t index(int rank, const Slot& slot) const {
    const size_t turn = static_cast<size_t>(rank) * 2 + (slot.forward ? 1 : 0),
                 chunk = turn * static_cast<size_t>(shape_.num_chunks) + static_cast<size_t>(slot.chunk);
    return chunk * static_cast<size_t>(shape_.num_microbatches) + static_cast<size_t>(slot.microbatch);
  }

  PipelineShape shape_;
  std::vector<int> rounds_;
};

}  // namespace pleat::schedule
