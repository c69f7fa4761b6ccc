// How far one expert's noise has to be raised for it to be chosen as often as a benchmark asks.
#pragma once

#include <cstdint>

namespace pleat::model {

// Every expert's logit is a standard normal number; the bias of one of them that makes it one of the `top_k`
// largest of `num_experts` for a share load * top_k / num_experts of all tokens: `load` times the mean.
// 1 <= load <= num_experts / top_k.
double bias_of_load(int64_t num_experts, int64_t top_k, double load);

}  // namespace pleat::model
