// A random-looking permutation of [0, n) that is computed per index and stored nowhere: shuffling a trillion
// samples costs no memory and no start-up time, and any rank can ask for any position.
//
// A Feistel network permutes the smallest even-bit range 2^(2h) >= n; positions that land at n or above are
// sent through again until they fall below n (cycle walking), which keeps the map a bijection of [0, n).
// The range is below 4n, so fewer than four rounds of walking are expected. The key is (seed, epoch).
#pragma once

#include <array>
#include <cstdint>

namespace pleat::data {

class Permutation {
 public:
  static constexpr int64_t kMaxSize = int64_t{1} << 48;

  // 1 <= size <= 2^48, else it throws.
  Permutation(int64_t size, uint64_t seed, int64_t epoch);

  // 0 <= index < size().
  int64_t operator()(int64_t index) const;
  int64_t size() const { return size_; }

 private:
  static constexpr int kNumRounds = 8;
  int64_t size_;
  int half_bits_;
  std::array<uint64_t, kNumRounds> keys_;
};

}  // namespace pleat::data
