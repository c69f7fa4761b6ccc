#include "schedule/pipeline_rounds.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace pleat::schedule {

Producer producer_of(const PipelineShape& shape, const Slot& slot) {
  const int p = shape.num_ranks, at = slot.chunk * p + shape.rank;
  const int from = slot.forward ? at - 1 : at + 1;
  if (from < 0 || from >= p * shape.num_chunks) return {};
  return {from % p, {slot.forward, slot.microbatch, from / p}};
}

PipelineRounds::PipelineRounds(const PipelineShape& shape) : shape_(shape) {
  const size_t p = static_cast<size_t>(shape.num_ranks);
  std::vector<PipelineShape> ranks(p, shape);
  std::vector<std::vector<Slot>> orders;
  for (size_t r = 0; r < p; ++r) {
    ranks[r].rank = static_cast<int>(r);
    orders.push_back(pipeline_order(ranks[r]));
  }
  rounds_.assign(index(shape.num_ranks, {false, 0, 0}), -1);  // -1: not known yet
  std::vector<size_t> next(p, 0);
  for (bool moved = true; std::exchange(moved, false);)
    for (size_t r = 0; r < p; ++r)
      for (; next[r] < orders[r].size(); ++next[r], moved = true) {
        const Slot& slot = orders[r][next[r]];
        const Producer from = producer_of(ranks[r], slot);
        const int made = from.rank < 0 ? -1 : round(from.rank, from.slot);
        if (from.rank >= 0 && made < 0) break;
        int earliest = 0;
        if (next[r] > 0) {
          const Slot& before = orders[r][next[r] - 1];
          earliest = round(static_cast<int>(r), before) + (before.forward && !slot.forward ? 0 : 1);
        }
        rounds_[index(static_cast<int>(r), slot)] = std::max(earliest, made + 1);
      }
  for (size_t r = 0; r < p; ++r)
    PLEAT_CHECK(next[r] == orders[r].size(), "the order of pipeline rank {} waits for itself at slot {}", r,
                next[r]);
}

}  // namespace pleat::schedule
