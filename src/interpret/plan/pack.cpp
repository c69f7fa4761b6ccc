#include "interpret/plan/pack.h"

#include <algorithm>

#include "base/checked.h"

namespace pleat::interpret {

using namespace program;

int64_t padded_bytes(const Value& v) { return base::round_up(num_bytes(v), kArenaAlignment); }

int64_t first_fit(std::vector<std::pair<int64_t, int64_t>>& occupied, int64_t floor, int64_t bytes) {
  std::sort(occupied.begin(), occupied.end());
  int64_t at = floor;
  for (const auto& [begin, end] : occupied) {
    if (begin - at >= bytes) break;
    at = std::max(at, end);
  }
  return at;
}

int64_t pack_values(const Program& program, const Order& order, const Lifetimes& lives,
                    std::vector<size_t> values, int64_t floor, std::vector<int64_t>& offset,
                    std::span<const size_t> placed) {
  const StageId last_stage = static_cast<StageId>(program.stages.size()) - 1;
  const auto length = [&](size_t i) {
    const StageId begin = lives[i].from_start ? 0 : std::max(0, lives[i].first_in_list);
    return (lives[i].to_end ? last_stage : lives[i].last_in_list) - begin;
  };
  // Among equals the longer-lived comes first: it is the harder one to place.
  std::sort(values.begin(), values.end(), [&](size_t a, size_t b) {
    const int64_t ba = padded_bytes(program.values[a]), bb = padded_bytes(program.values[b]);
    if (ba != bb) return ba > bb;
    const int la = length(a), lb = length(b);
    return la != lb ? la > lb : a < b;
  });
  int64_t end = floor;
  std::vector<std::pair<int64_t, int64_t>> occupied;
  for (size_t n = 0; n < values.size(); ++n) {
    const size_t i = values[n];
    const int64_t bytes = padded_bytes(program.values[i]);
    occupied.clear();
    const auto keep_off = [&](size_t j) {
      if (!lives.ordered(order, i, j) && !lives.ordered(order, j, i))
        occupied.emplace_back(offset[j], offset[j] + padded_bytes(program.values[j]));
    };
    for (const size_t j : placed) keep_off(j);
    for (size_t m = 0; m < n; ++m) keep_off(values[m]);
    offset[i] = first_fit(occupied, floor, bytes);
    end = std::max(end, offset[i] + bytes);
  }
  return end;
}

}  // namespace pleat::interpret
