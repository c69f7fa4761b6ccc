#include "layout/from_config.h"

#include <numeric>

#include "base/checked.h"

namespace pleat::layout {

Sizes sizes_of(const config::Config& c, int64_t num_ranks) {
  const config::ParallelConfig& p = c.parallel;
  return {num_ranks, p.tp, p.cp, p.pp, p.vpp, p.ep, p.etp, p.order, c.moe.num_experts, p.optimizer_group};
}

PipelineLayout pipeline_of(const config::Config& c) {
  return PipelineLayout::make(c.parallel.pipeline_layout,
                              {c.parallel.pp, c.parallel.vpp, c.model.num_layers, c.model.num_mtp_layers});
}

int64_t least_ranks(const config::Config& c) {
  const config::ParallelConfig& p = c.parallel;
  // Each size is at most 2^20 (config), so none of these products overflows.
  const int64_t attention = p.tp * p.cp, expert = p.etp * p.ep;
  return base::checked_mul(attention / std::gcd(attention, expert) * p.pp, expert, "ranks");
}

void require_one_rank(const config::Config& c) {
  const Layout layout(sizes_of(c, 1));
  pipeline_of(c);
}

}  // namespace pleat::layout
