// The k largest of a row of keys: of equal keys the lower position wins, NaN counts as -inf. No allocation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

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

  int64_t count() const { return count_; }
  const int32_t* positions() const { return position_; }  // by descending key
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

}  // namespace pleat::kernels
