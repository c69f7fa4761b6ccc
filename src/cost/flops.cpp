#include "cost/flops.h"

#include <algorithm>

namespace pleat::cost {

ModelFlops model_flops(const config::Config& config, double tokens, double seq_len) {
  return model_flops(architecture_of(config), tokens, seq_len);
}

double stage_flops(const program::Program& program, const program::Stage& stage, int64_t seq_len) {
  using program::KernelKind;
  using program::Phase;
  const auto shape = [&](size_t i) -> const std::vector<int64_t>& {
    return program.values[size_t(stage.uses[i].value)].shape;
  };
  const auto attr = [&](const char* key) {
    for (const program::Attr& a : program.attrs[size_t(stage.attrs)])
      if (a.key == key) return a.number;
    return 0.0;
  };
  const auto rows_times = [&](const std::vector<int64_t>& x, const std::vector<int64_t>& w) {
    return 2.0 * double(x[0]) * double(w[w.size() - 1]) * double(w[w.size() - 2]);
  };
  switch (program::kernel_of(stage.op)) {
    case KernelKind::linear:
    case KernelKind::router_gate:
      // dw has the weight's shape, whatever the phase calls it.
      return stage.phase == Phase::BackwardWeight ? rows_times(shape(0), shape(2))
                                                  : rows_times(shape(0), shape(1));
    case KernelKind::grouped_linear:
      return stage.phase == Phase::BackwardWeight ? rows_times(shape(0), shape(4))
                                                  : rows_times(shape(0), shape(1));
    case KernelKind::attention:
    case KernelKind::context_attention:
    case KernelKind::ring_attention: {
      if (stage.phase == Phase::BackwardWeight) return 0;  // sinks: one number per row and head
      // A rank of a ring meets its part of the keys in each step: with two chunks from both ends of a
      // sequence, the same number in every step.
      const double steps = program::kernel_of(stage.op) == KernelKind::ring_attention ? attr("ranks") : 1.0;
      const double rows = double(shape(0)[0]), heads = attr("heads"), d = attr("head_dim"),
                   dv = attr("v_head_dim"), window = attr("window");
      const double keys = std::min(double(seq_len) / 2, window > 0 ? window : double(seq_len));
      // Forward: scores and values. Backward: scores again, dq and dk; dp and dv.
      return 2.0 * rows * keys / steps * heads * (stage.phase == Phase::Forward ? d + dv : 3 * d + 2 * dv);
    }
    default:
      return 0;
  }
}

double hardware_flops(const program::Program& program, int64_t seq_len) {
  double sum = 0;
  for (const program::Stage& stage : program.stages) sum += stage_flops(program, stage, seq_len);
  return sum;
}

}  // namespace pleat::cost
