// A layout against one rank in the precision a configuration trains in.
//
// Both take the experts one rank chose (its routing is recorded and replayed; probabilities and their gradients
// are each run's own), so that they differ by roundings alone and no tie can flip. How large roundings are is
// measured, tensor by tensor: the same steps of one rank in float64, with the same weights and the same experts.
// That one rank is right itself is held to docs/numerics.md section 9, the layout to a multiple of one rank's
// own error (section 10). What follows from the gradients (norm, clip factor, moments, weights) is computed once
// more in double from the gradients of the layout itself: there the bound is a few last places.
#pragma once

#include "verify/noise.h"

namespace pleat::verify {

struct PrecisionReport {
  std::string dtype;  // as model.dtype names it
  double unit = 0;    // its unit roundoff
  double factor = 0;  // bound / noise
  BoundReport alone;  // one rank against float64
  std::vector<PrecisionRow> rows;
  bool loads_equal = true, biases_equal = true;  // of experts, exactly
  std::string budget;                            // what fit_budget says
  std::string left_out;  // what of the model was not compared, and why; empty: nothing
  std::string verdict;   // empty: all is inside
};

struct PrecisionOptions {
  bool narrow = false;  // RunOptions::narrow: bfloat16 on the CPU
  int64_t num_steps = 3;
  uint64_t seed = 1;
};

// One rank, to which any layout of the same model is compared. `config` must be resolved; its device and model.dtype
// are where and how both run. With moe.capacity_factor it drops as the ranks of `pieces_of` do.
class OneRank {
 public:
  explicit OneRank(const config::Config& config, const PrecisionOptions& options = {},
                   const model::Mesh& pieces_of = {});
  OneRank(const OneRank&) = delete;  // its options refer to it
  OneRank& operator=(const OneRank&) = delete;

  // `config`: the same model, with the token budget it is to have under the layout.
  PrecisionReport verify(config::Config config, const model::Mesh& mesh,
                         const std::vector<model::Role>& roles, Fault fault = Fault::None) const;

 private:
  void run();  // one_, wide_
  void leave_out_counted_losses(int64_t too_close);
  void condition();  // kappa_
  void judge();      // alone_
  double stored(double initial) const;

  config::Config config_, float64_;
  const uint64_t seed_;
  std::string dtype_, left_out_;
  model::Mesh mesh_;  // of one rank
  RunOptions narrow_, exact_;
  LayoutRun one_, wide_;
  Conditioning kappa_;
  BoundReport alone_;
};

}  // namespace pleat::verify
