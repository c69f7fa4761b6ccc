#include "verify/close_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace pleat::verify {
namespace {

constexpr double kApart = 4;  // two logits may each move, and by twice the largest error that was seen

// The gap between the last logit that is counted and the first that is not.
double gap_of(const double* logits, int64_t num_experts, int64_t top_k) {
  if (top_k >= num_experts) return INFINITY;
  std::vector<double> sorted(logits, logits + num_experts);
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  return sorted[static_cast<size_t>(top_k - 1)] - sorted[static_cast<size_t>(top_k)];
}

}  // namespace

int64_t take_out_close_calls(const config::Config& c, const LayoutRun& narrow, const LayoutRun& wide,
                             std::vector<Batch>& batches) {
  const model::AuxCoefficients aux = model::aux_coefficients(c);
  if (aux.micro == 0 && aux.sequence == 0 && aux.global == 0) return 0;
  int64_t out = 0;
  for (size_t s = 0; s < narrow.steps.size(); ++s)
    for (const auto& [name, logits] : narrow.steps[s].taps) {
      if (!name.ends_with(".router_logits")) continue;
      const Tensor& exact = wide.steps[s].taps.at(name);
      double error = 0;
      for (size_t i = 0; i < exact.size(); ++i) error = std::max(error, std::abs(logits[i] - exact[i]));
      Batch& batch = batches[s];
      runtime::Microbatch& mb = batch.microbatches[std::stoul(name.substr(2))];  // "mb1.L0.router_logits"
      for (size_t t = 0; t < mb.valid.size(); ++t) {
        if (!mb.valid[t] ||
            gap_of(&logits[t * size_t(c.moe.num_experts)], c.moe.num_experts, c.moe.top_k) > kApart * error)
          continue;
        batch.loss_tokens -= mb.loss_mask[t];
        batch.valid_tokens -= 1;
        mb.loss_mask[t] = mb.valid[t] = 0;
        ++out;
      }
    }
  return out;
}

}  // namespace pleat::verify
