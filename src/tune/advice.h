// What would have to give where nothing fits: each thing by itself, found by trying.
#pragma once

#include <string>
#include <vector>

#include "tune/search.h"

namespace pleat::tune {

// Sentences without a dot: "with train.seq_len = 2048 it fits: ...". Of fewer layers and tokens the most that fit, of more
// ranks the fewest, each with the choices of one of `nearest`.
std::vector<std::string> what_would_fit(const Space& space, const std::vector<Found>& nearest,
                                        const schedule::Ground& ground);

// Where nothing that `train` takes fits: how what it refuses today would; else empty.
std::string not_yet_advice(const Space& space, const Answer& answer, const schedule::Ground& ground);

// What a bound on routed rows (moe.token_budget) would make of a candidate, where experts lie on several ranks and have
// room for the worst routing; else empty. It is no choice of a search: a step past it is stopped, cut or run again.
std::string token_budget_advice(const Space& space, const Found& found, const schedule::Ground& ground);

}  // namespace pleat::tune
