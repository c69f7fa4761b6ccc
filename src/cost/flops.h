// Floating-point operations, counted two ways (docs/numerics.md has the formulas with a worked example).
//
// Model FLOPs: what the model needs whatever the implementation does: active experts only, causal attention
// counted half, forward + both backwards, no recompute, no router, norms or rotation. Hardware FLOPs: what
// the stages of a program really execute, replayed forwards and padded rows included, of routed rows as many as
// even routing fills: kernels skip those that are only reserved.
#pragma once

#include "config/config.h"
#include "cost/architecture.h"
#include "program/program.h"

namespace pleat::cost {

// One training step over `tokens` tokens in sequences of `seq_len`. `config` must be resolved.
ModelFlops model_flops(const config::Config& config, double tokens, double seq_len);

// Multiply-adds of one stage, times two, as its kernel counts them; 0 for stages without matrix products.
double stage_flops(const program::Program& program, const program::Stage& stage);
double hardware_flops(const program::Program& program);

}  // namespace pleat::cost
