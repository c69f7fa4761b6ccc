// How unevenly tokens reach experts, and what that makes of the rank that has most to do: it sets the pace of all who
// exchange rows with it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "cost/price.h"

namespace pleat::cost {

// Rows of the fullest of `ep` ranks, each with an equal run of experts, over the mean.
double rank_imbalance(std::span<const double> expert_load, int64_t ep);

// Loads that fall from expert to expert by one factor, the first `max_over_mean` times the mean (1 to the number of experts).
std::vector<double> falling_loads(double max_over_mean, int64_t num_experts);

// Drawn: in every layer and microbatch such loads in an order of their own, by the seed.
RankLoad drawn_load(double max_over_mean, int64_t num_experts, int64_t ep, uint64_t seed);
// Recorded: of each layer what its router chose; layers without a record are balanced. Throws where a layer has another
// number of experts.
RankLoad recorded_load(const std::map<int, std::vector<int64_t>>& loads, int64_t num_experts, int64_t ep);

}  // namespace pleat::cost
