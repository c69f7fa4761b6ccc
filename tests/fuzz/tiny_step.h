// A training step of a tiny model on whatever a file says, for fuzzers of machines, costs and curves.
#pragma once

#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "config/resolve.h"
#include "schedule/simulated_step.h"

namespace pleat::fuzz {

inline config::Config tiny_config(cost::MachineKind kind) {
  config::Config c;
  c.model.hidden_size = 16, c.model.num_layers = 1, c.model.num_heads = 2, c.model.num_kv_heads = 2;
  c.model.vocab_size = 32;
  c.moe.num_experts = 4, c.moe.top_k = 2, c.moe.ffn_hidden_size = 16;
  c.train.seq_len = 8, c.train.micro_batch = 1, c.train.num_microbatches = 2;
  c.parallel.ep = 2, c.device.threads = 1;
  if (kind == cost::MachineKind::Gpu) c.device.kind = "cuda", c.model.dtype = "bfloat16";
  return config::resolve(c);
}

// Aborts where a step takes a time that is none. What cannot be simulated is refused with base::Error.
inline void simulate_tiny(const schedule::Ground& ground) {
  constexpr int64_t kRanks = 2;
  static const config::Config configs[] = {tiny_config(cost::MachineKind::Gpu),
                                           tiny_config(cost::MachineKind::Cpu)};
  static const schedule::RankPrograms programs[] = {schedule::build_ranks(configs[0], kRanks),
                                                    schedule::build_ranks(configs[1], kRanks)};
  const size_t of = ground.machine.kind == cost::MachineKind::Gpu ? 0 : 1;
  const schedule::SimulatedStep step(configs[of], programs[of], ground);
  const int64_t ns = step.run().step_ns;
  if (ns <= 0 || ns > int64_t{1} << 62 || step.run_alone().step_ns <= 0) std::abort();
  if (!std::isfinite(schedule::step_figures(configs[of], kRanks, ground.machine, ns).tokens_per_s_per_rank))
    std::abort();
}

}  // namespace pleat::fuzz
