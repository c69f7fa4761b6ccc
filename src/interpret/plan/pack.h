// The two levels of packing: values one by one, and spans of turns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "interpret/plan/plan.h"

namespace pleat::interpret {

int64_t padded_bytes(const program::Value& value);

// Lowest offset >= floor at which `bytes` fit between the occupied spans, which it sorts.
int64_t first_fit(std::vector<std::pair<int64_t, int64_t>>& occupied, int64_t floor, int64_t bytes);

// Gives each of `values` an offset from `floor` on, large ones first, each at the lowest place free of
// everything it may be alive with, those in `placed` included, which have an offset already. Returns the end.
int64_t pack_values(const program::Program& program, const program::Order& order, const Lifetimes& lives,
                    std::vector<size_t> values, int64_t floor, std::vector<int64_t>& offset,
                    std::span<const size_t> placed = {});

// The same for many values: those that live inside one turn are packed per kind of turn, the others lie side
// by side in a frame with those that are alive from the same turn to the same turn.
int64_t pack_frames(const program::Program& program, const program::Order& order, const Lifetimes& lives,
                    const std::vector<size_t>& values, int64_t floor, std::vector<int64_t>& offset);

}  // namespace pleat::interpret
