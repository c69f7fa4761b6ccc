// The k largest of a row of keys: of equal keys the lower position wins, NaN counts as -inf. No allocation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/router/router.h"

namespace pleat::kernels {

template <class R>
class TopK {
 public:
  explicit TopK(int64_t k) : k_(k) {}

  // Positions must come in ascending order between resets.
  void push(R key, int32_t position) {
    if (!(key == key)) key = -std::numeric_limits<R>::infinity();
    int64_t at;
    if (count_ < k_) {
      at = count_++;
    } else if (key > key_[k_ - 1]) {
      at = k_ - 1;
    } else {
      return;
    }
    for (; at > 0 && key_[at - 1] < key; --at) {
      key_[at] = key_[at - 1];
      position_[at] = position_[at - 1];
    }
    key_[at] = key;
    position_[at] = position;
  }
  void push_range(const R* keys, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) push(keys[i], static_cast<int32_t>(i));
  }
  void reset() { count_ = 0; }

  void ascending(int32_t* out) const {
    std::copy_n(position_, count_, out);
    std::sort(out, out + count_);
  }
  double sum() const {
    double total = 0;
    for (int64_t i = 0; i < count_; ++i) total += static_cast<double>(key_[i]);
    return total;
  }

 private:
  int64_t k_, count_ = 0;
  R key_[kMaxExperts];  // left uninitialised: only the first count_ entries mean anything
  int32_t position_[kMaxExperts];
};

// The k largest of keys[0, n) as ascending positions, same rules. Short rows count for every key how many
// beat it: more work, but no branches to mispredict, and vectors all the way.
template <class R>
void choose_top(const R* keys, int64_t n, int64_t k, TopK<R>& room, int32_t* out) {
  constexpr int32_t kShort = 64;
  if (n > kShort) {
    room.reset();
    room.push_range(keys, 0, n);
    room.ascending(out);
    return;
  }
  using Rank = std::conditional_t<sizeof(R) == 4, int32_t, int64_t>;  // as wide as the key: one vector shape
  constexpr int32_t kLanes = 16;
  R key[kShort];
  Rank rank[kShort];
  const int32_t num = static_cast<int32_t>(n), padded = (num + kLanes - 1) / kLanes * kLanes;
  for (int32_t i = 0; i < padded; ++i) {
    const R x = i < num ? keys[i] : R(0);
    key[i] = x == x ? x : -std::numeric_limits<R>::infinity();
  }
  for (int32_t first = 0; first < padded; first += kLanes) {
    Rank beaten_by[kLanes] = {};
    for (int32_t j = 0; j < num; ++j)
      for (int32_t i = 0; i < kLanes; ++i) {
        const Rank larger = key[j] > key[first + i] ? 1 : 0, equal = key[j] == key[first + i] ? 1 : 0;
        beaten_by[i] += larger | (equal & (j < first + i ? Rank{1} : Rank{0}));
      }
    std::copy_n(beaten_by, kLanes, rank + first);
  }
  int32_t position[kShort + 1];
  int32_t count = 0;
  for (int32_t i = 0; i < num; ++i) {
    position[count] = i;
    count += rank[i] < k;
  }
  std::copy_n(position, k, out);
}

}  // namespace pleat::kernels
