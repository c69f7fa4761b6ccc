// A microbatch and the rows of it that one rank holds: of each sequence the context chunks r and
// 2 cp - 1 - r, so that causal work is even; of these the tensor ranks own equal runs.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"
#include "interpret/run/executor.h"
#include "runtime/rank_setup.h"

namespace pleat::runtime {

// In natural order: sequences back to back.
struct Microbatch {
  std::vector<int32_t> tokens, labels, positions, doc_start;  // doc_start: row of the microbatch
  std::vector<uint8_t> loss_mask, valid;
  std::vector<int64_t> token_index;

  void resize(size_t num_rows);
};

// Natural rows of the context rank.
std::vector<int32_t> context_rows(const config::Config& config, const model::Mesh& mesh,
                                  int64_t context_rank);

class InputRows {
 public:
  InputRows(const config::Config& config, const model::Mesh& mesh, const RankPlace& place);

  // Inputs of the rank's microbatch `mb` of `executor`, a training step or an evaluation.
  void write(interpret::Executor& executor, int64_t mb, const Microbatch& microbatch) const;

 private:
  bool several_;  // ranks hold a microbatch
  std::vector<int32_t> rows_, order_, inverse_;
  size_t own_ = 0, first_ = 0;
};

}  // namespace pleat::runtime
