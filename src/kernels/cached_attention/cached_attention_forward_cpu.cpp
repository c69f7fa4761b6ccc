// Keys of a block in vector lanes: a step with one new token has few queries, but always many keys.
#include <algorithm>
#include <limits>

#include "kernels/attention/attention_tile.h"
#include "kernels/cached_attention/cached_attention.h"
#include "kernels/math/exp.h"

namespace pleat::kernels {
namespace {

using namespace attention;

template <class T>
class QueryBlock {
 public:
  QueryBlock(const CachedAttentionShape& shape, const T* q, const T* rows, const T* cache, const T* sinks,
             T* out)
      : s_(shape), q_(q), rows_(rows), cache_(cache), sinks_(sinks), out_(out) {}

  // Queries [first, last) of key/value head g of sequence b; query u is head u mod group of new token
  // u / group.
  void run(int64_t b, int g, int64_t first, int64_t last, int64_t length, int64_t num_new) {
    load_queries(b, g, first, last, length, num_new);
    if (count_ == 0) return;
    const int64_t end = position_[count_ - 1] + 1;
    for (int64_t p = low_[0]; p < end;) {
      const T* from;
      int64_t stride, n;
      if (p < length) {
        const int64_t slot = p % s_.cache.capacity;
        n = std::min<int64_t>({kKeys, s_.cache.capacity - slot, length - p});
        from = cache_ + (b * s_.cache.capacity + slot) * s_.cache.width;
        stride = s_.cache.width;
      } else {
        n = std::min<int64_t>(kKeys, end - p);
        from = rows_ + (b * s_.cache.num_rows + p - length) * s_.cache.row_stride + s_.cache.column;
        stride = s_.cache.row_stride;
      }
      attend(p, static_cast<int>(n), from + int64_t{g} * s_.head_dim,
             from + s_.v_column + int64_t{g} * s_.v_head_dim, stride);
      p += n;
    }
    for (int m = 0; m < count_; ++m)
      for (int c = 0; c < s_.v_head_dim; ++c) target_[m][c] = result_[m * padded() + c] / sum_[m];
  }

 private:
  static constexpr int kL = kLanes<T>;
  static constexpr int kKeys = kBlockRows<T>;
  using Vector = typename Lanes<T>::Vector;

  int padded() const { return (s_.v_head_dim + kL - 1) / kL * kL; }

  void load_queries(int64_t b, int g, int64_t first, int64_t last, int64_t length, int64_t num_new) {
    const int group = s_.heads / s_.kv_heads;
    const T scale = static_cast<T>(s_.scale);
    count_ = 0;
    for (int64_t u = first; u < last; ++u) {
      const int64_t i = u / group, row = b * s_.cache.num_rows + i;
      const int64_t head = int64_t{g} * group + u % group;
      T* to = out_ + (row * s_.heads + head) * s_.v_head_dim;
      if (i >= num_new) {
        std::fill_n(to, s_.v_head_dim, T(0));
        continue;
      }
      const int m = count_++;
      const T* from = q_ + row * s_.q_stride + head * s_.head_dim;
      for (int c = 0; c < s_.head_dim; ++c) queries_[m * s_.head_dim + c] = scale * from[c];
      target_[m] = to;
      position_[m] = length + i;
      low_[m] = s_.cache.window > 0 ? std::max<int64_t>(0, position_[m] - s_.cache.window + 1) : 0;
      max_[m] = sinks_ ? sinks_[head] : -std::numeric_limits<T>::infinity();
      sum_[m] = sinks_ ? T(1) : T(0);
      std::fill_n(result_ + m * padded(), padded(), T(0));
    }
  }

  // n keys from position p on.
  void attend(int64_t p, int n, const T* keys, const T* values, int64_t stride) {
    const int vectors = (n + kL - 1) / kL;
    transpose_padded(n, vectors * kL, s_.head_dim, keys, stride, keys_, kKeys);
    multiply<Left::RowMajor, Sum::Start>(count_, vectors, s_.head_dim, queries_, s_.head_dim, keys_, kKeys,
                                         scores_, kKeys);
    for (int m = 0; m < count_; ++m) soften(m, p, n, vectors * kL);
    ptrdiff_t ld = stride;
    if (s_.v_head_dim % kL != 0) {
      copy_rows(n, s_.v_head_dim, padded(), T(1), values, stride, values_, padded());
      values = values_;
      ld = padded();
    }
    multiply<Left::RowMajor, Sum::Continue>(count_, padded() / kL, n, scores_, kKeys, values, ld, result_,
                                            padded());
  }

  // Scores of query m become probabilities relative to its largest score so far; what was summed before
  // shrinks.
  void soften(int m, int64_t p, int n, int width) {
    T* s = scores_ + m * kKeys;
    const int from = static_cast<int>(std::clamp<int64_t>(low_[m] - p, 0, n));
    const int to = static_cast<int>(std::clamp<int64_t>(position_[m] + 1 - p, 0, n));
    if (to <= from) {
      std::fill_n(s, width, T(0));
      return;
    }
    std::fill_n(s, from, -std::numeric_limits<T>::infinity());
    std::fill(s + to, s + width, -std::numeric_limits<T>::infinity());
    Vector top = Vector{} - std::numeric_limits<T>::infinity();
    for (int j = 0; j < width; j += kL) {
      const Vector x = *reinterpret_cast<const Vector*>(s + j);
      top = x > top ? x : top;  // NaN is left to the exponential
    }
    T highest = max_[m];
    for (int j = 0; j < kL; ++j) highest = top[j] > highest ? top[j] : highest;
    for (int j = 0; j < width; ++j) s[j] = fast_exp(s[j] - highest);
    Vector total = {};
    for (int j = 0; j < width; j += kL) total += *reinterpret_cast<const Vector*>(s + j);
    T sum = 0;
    for (int j = 0; j < kL; ++j) sum += total[j];
    const T shrink = fast_exp(max_[m] - highest);
    sum_[m] = sum_[m] * shrink + sum;
    if (max_[m] != highest)
      for (int c = 0; c < padded(); ++c) result_[m * padded() + c] *= shrink;
    max_[m] = highest;
  }

  const CachedAttentionShape& s_;
  const T *q_, *rows_, *cache_, *sinks_;
  T* out_;
  int count_ = 0;
  T* target_[kQueryRows];
  int64_t position_[kQueryRows], low_[kQueryRows];
  T max_[kQueryRows], sum_[kQueryRows];
  alignas(64) T queries_[kQueryRows * kMaxCachedWidth];
  alignas(64) T result_[kQueryRows * kMaxCachedWidth];
  alignas(64) T keys_[kMaxCachedWidth * kKeys];
  alignas(64) T values_[kMaxCachedWidth * kKeys];
  alignas(64) T scores_[kQueryRows * kKeys];
};

}  // namespace

void check_cache_use(const CacheShape& s, const int32_t* lengths, const int32_t* num_new) {
  for (int64_t b = 0; b < s.num_sequences; ++b) {
    if (lengths[b] < 0 || num_new[b] < 0 || num_new[b] > s.num_rows)
      base::fail("[cached_attention] sequence {} has {} cached and {} new tokens, needed >= 0 and 0 to {}", b,
                 lengths[b], num_new[b], s.num_rows);
    if (!s.may_wrap() && int64_t{lengths[b]} + num_new[b] > s.capacity)
      base::fail("[cached_attention] sequence {} would grow to {} tokens, the cache holds {}", b,
                 int64_t{lengths[b]} + num_new[b], s.capacity);
  }
}

template <class T>
void cached_attention(const CachedAttentionShape& s, const T* q, const T* rows, const T* cache,
                      const int32_t* lengths, const int32_t* num_new, const T* sinks, T* out,
                      device::Pool& pool) {
  check_cache_use(s.cache, lengths, num_new);
  const int64_t num_queries = s.cache.num_rows * (s.heads / s.kv_heads);
  const int64_t blocks = (num_queries + kQueryRows - 1) / kQueryRows;
  pool.for_each_tile(s.cache.num_sequences * s.kv_heads * blocks, [&](int64_t tile) {
    const int64_t block = tile % blocks, g = tile / blocks % s.kv_heads, b = tile / blocks / s.kv_heads;
    QueryBlock<T>(s, q, rows, cache, sinks, out)
        .run(b, static_cast<int>(g), block * kQueryRows, std::min(num_queries, (block + 1) * kQueryRows),
             lengths[b], num_new[b]);
  });
}

template <class T>
void cache_append(const CacheShape& s, const T* rows, const int32_t* lengths, const int32_t* num_new,
                  T* cache, device::Pool& pool) {
  check_cache_use(s, lengths, num_new);
  pool.for_each_tile(s.num_sequences, [&](int64_t b) {
    // Of more new rows than slots only the last ones stay.
    for (int64_t i = std::max<int64_t>(0, num_new[b] - s.capacity); i < num_new[b]; ++i)
      std::copy_n(rows + (b * s.num_rows + i) * s.row_stride + s.column, s.width,
                  cache + (b * s.capacity + (lengths[b] + i) % s.capacity) * s.width);
  });
}

#define PLEAT_INSTANTIATE(T)                                                                      \
  template void cached_attention<T>(const CachedAttentionShape&, const T*, const T*, const T*,    \
                                    const int32_t*, const int32_t*, const T*, T*, device::Pool&); \
  template void cache_append<T>(const CacheShape&, const T*, const int32_t*, const int32_t*, T*,  \
                                device::Pool&);
PLEAT_INSTANTIATE(float)
PLEAT_INSTANTIATE(double)
#undef PLEAT_INSTANTIATE

}  // namespace pleat::kernels
