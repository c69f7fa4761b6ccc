// Attention forward on the CPU: online softmax, query rows in vector lanes (contract: attention.h).
//
// One tile of work is one head and one block of query rows. Scores are held transposed, [key, query], so that
// the maximum and the sum of a row run down a lane.
#include <cmath>
#include <limits>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_rows.h"
#include "kernels/attention/attention_tile.h"
#include "kernels/math/exp.h"

namespace pleat::kernels {
namespace {

using namespace attention;

template <class T>
class ForwardBlock {
 public:
  ForwardBlock(const AttentionShape& shape, const T* qkv, const int32_t* doc_start, const T* sinks, int head)
      : shape_(shape),
        doc_start_(doc_start),
        d_(shape.head_dim),
        dv_(shape.v_head_dim),
        ld_(shape.width()),
        q_(qkv + static_cast<int64_t>(head) * d_),
        k_(qkv + shape.k_column(shape.kv_head_of(head))),
        v_(qkv + shape.v_column(shape.kv_head_of(head))) {
    if (!sinks) return;
    // Finite for any sink, as below; a NaN sink passes on through the sum.
    start_max_ = std::max(start_max_, sinks[head]);
    start_sum_ = fast_exp(sinks[head] - start_max_);
  }

  // Rows [first, end) of one segment, at most kRows. out and lse point at this head's columns of row 0.
  void run(int64_t segment, int64_t first, int64_t end, T* out, T* lse) {
    const int rows = static_cast<int>(end - first);
    vectors_ = (rows + kL - 1) / kL;
    transpose_padded(rows, vectors_ * kL, d_, q_ + first * ld_, ld_, queries_, kRows);
    // Queries are scaled, not keys, in both directions: backward then rebuilds the very same scores.
    const T scale = static_cast<T>(shape_.scale);
    for (int c = 0; c < d_; ++c)
      for (int i = 0; i < vectors_ * kL; i += kL)
        *reinterpret_cast<Vector*>(queries_ + c * kRows + i) *= scale;
    for (int c = 0; c < dv_; ++c)
      for (int i = 0; i < vectors_ * kL; i += kL)
        *reinterpret_cast<Vector*>(result_ + c * kRows + i) = Vector{};
    for (int i = 0; i < vectors_ * kL; ++i) {
      // Lanes past the last row see nothing.
      low_[i] = i < rows ? static_cast<int32_t>(first_visible(shape_, doc_start_, first + i))
                         : std::numeric_limits<int32_t>::max();
      max_[i] = start_max_;
      sum_[i] = start_sum_;
    }

    // Blocks of keys are cut like blocks of queries, so only the last one crosses the diagonal.
    const int64_t lowest = low_[0];
    for (int64_t block = segment + (lowest - segment) / kRows * kRows; block < end; block += kRows) {
      const int64_t begin = std::max(block, lowest);
      const int keys = static_cast<int>(std::min(block + kRows, end) - begin);
      copy_rows(keys, d_, d_, T(1), k_ + begin * ld_, ld_, keys_, d_);
      copy_rows(keys, dv_, dv_, T(1), v_ + begin * ld_, ld_, values_, dv_);
      const bool diagonal = block == first;
      score(keys, diagonal);
      if (diagonal || low_[rows - 1] > begin) hide(begin, keys, first, diagonal);
      for (int v = 0; v < vectors_; ++v)
        soften(v, diagonal ? std::min(keys, (v + 1) * kL) : keys, begin > lowest);
      gather(keys, diagonal);
    }

    for (int c = 0; c < dv_; ++c)
      for (int i = 0; i < vectors_ * kL; i += kL)
        *reinterpret_cast<Vector*>(result_ + c * kRows + i) /= *reinterpret_cast<const Vector*>(sum_ + i);
    transpose(dv_, rows, result_, kRows, out + first * shape_.out_width(), shape_.out_width());
    for (int i = 0; i < rows; ++i) lse[(first + i) * shape_.heads] = max_[i] + std::log(sum_[i]);
  }

 private:
  static constexpr int kL = kLanes<T>;
  static constexpr int kRows = kBlockRows<T>;
  using Vector = typename Lanes<T>::Vector;

  // On the diagonal the keys of strip s (kL of them) are seen only by vectors s, s + 1, ...: the rest is left
  // out.
  template <class Body>
  void for_each_strip(int keys, bool diagonal, const Body& body) {
    if (!diagonal) return body(0, keys, 0);
    for (int key = 0, v = 0; key < keys; key += kL, ++v) body(key, std::min(kL, keys - key), v);
  }

  void score(int keys, bool diagonal) {
    for_each_strip(keys, diagonal, [&](int key, int count, int v) {
      multiply<Left::RowMajor, Sum::Start>(count, vectors_ - v, d_, keys_ + key * d_, d_, queries_ + v * kL,
                                           kRows, scores_ + key * kRows + v * kL, kRows);
    });
  }

  // Scores of keys a row does not see become -inf. Bounds are counted from `begin`: small, so exact in T.
  void hide(int64_t begin, int keys, int64_t first, bool diagonal) {
    alignas(64) T low[kRows], high[kRows];
    for (int i = 0; i < vectors_ * kL; ++i) {
      low[i] = static_cast<T>(std::clamp<int64_t>(low_[i] - begin, 0, kRows));
      high[i] = static_cast<T>(std::min<int64_t>(first + i - begin, kRows));
    }
    const Vector hidden = Vector{} - std::numeric_limits<T>::infinity();
    for_each_strip(keys, diagonal, [&](int key, int count, int v) {
      for (int i = v * kL; i < vectors_ * kL; i += kL) {
        const Vector lowest = *reinterpret_cast<const Vector*>(low + i);
        const Vector highest = *reinterpret_cast<const Vector*>(high + i);
        for (int j = key; j < key + count; ++j) {
          Vector& s = *reinterpret_cast<Vector*>(scores_ + j * kRows + i);
          const Vector position = Vector{} + static_cast<T>(j);
          s = position >= lowest ? s : hidden;
          s = position <= highest ? s : hidden;
        }
      }
    });
  }

  // Scores of query vector v become probabilities relative to the largest score so far; what was summed
  // before shrinks.
  void soften(int v, int keys, bool has_past) {
    T* column = scores_ + v * kL;
    T* m = max_ + v * kL;
    T* sum = sum_ + v * kL;
    Vector top = *reinterpret_cast<const Vector*>(m);
    const Vector old_top = top;
    for (int key = 0; key < keys; ++key) {
      const Vector s = *reinterpret_cast<const Vector*>(column + key * kRows);
      top = s > top ? s : top;  // NaN is left to the exponential
    }
    *reinterpret_cast<Vector*>(m) = top;
    Vector total = {};
    for (int key = 0; key < keys; ++key) {
      T* s = column + key * kRows;
      for (int i = 0; i < kL; ++i) s[i] = fast_exp(s[i] - m[i]);
      total += *reinterpret_cast<const Vector*>(s);
    }
    alignas(64) T shrink[kL];
    *reinterpret_cast<Vector*>(shrink) = old_top - top;
    for (int i = 0; i < kL; ++i) shrink[i] = fast_exp(shrink[i]);
    const Vector factor = *reinterpret_cast<const Vector*>(shrink);
    *reinterpret_cast<Vector*>(sum) = *reinterpret_cast<const Vector*>(sum) * factor + total;
    if (!has_past) return;
    for (int c = 0; c < dv_; ++c) *reinterpret_cast<Vector*>(result_ + c * kRows + v * kL) *= factor;
  }

  void gather(int keys, bool diagonal) {
    for_each_strip(keys, diagonal, [&](int key, int count, int v) {
      multiply<Left::Transposed, Sum::Continue>(dv_, vectors_ - v, count, values_ + key * dv_, dv_,
                                                scores_ + key * kRows + v * kL, kRows, result_ + v * kL,
                                                kRows);
    });
  }

  const AttentionShape& shape_;
  const int32_t* doc_start_;
  int d_, dv_;
  int64_t ld_;
  const T *q_, *k_, *v_;
  // The running maximum and sum before the first key: a sink counts as one key whose value is zero. Finite,
  // so that a lane that has seen nothing yet never subtracts infinity from infinity.
  T start_max_ = std::numeric_limits<T>::lowest(), start_sum_ = 0;
  int vectors_ = 0;
  int32_t low_[kRows];
  alignas(64) T max_[kRows], sum_[kRows];
  alignas(64) T queries_[kMaxHeadDim * kRows], result_[kMaxHeadDim * kRows];  // [d, query], [dv, query]
  alignas(64) T scores_[kRows * kRows];                                       // [key, query]
  alignas(64) T keys_[kRows * kMaxHeadDim], values_[kRows * kMaxHeadDim];     // [key, d], [key, dv]
};

}  // namespace

template <class T>
void attention_forward(const AttentionShape& shape, const T* qkv, const int32_t* doc_start, const T* sinks,
                       T* out, T* lse, device::Pool& pool) {
  check_doc_start(shape, doc_start);
  const int64_t spans = num_spans(shape, kBlockRows<T>);
  // Later blocks see more keys: largest work first.
  pool.for_each_tile(spans * shape.heads, [&](int64_t tile) {
    const int64_t span = spans - 1 - tile / shape.heads;
    const int head = static_cast<int>(tile % shape.heads);
    ForwardBlock<T> block(shape, qkv, doc_start, sinks, head);
    for_each_block(shape, doc_start, kBlockRows<T>, span, [&](int64_t segment, int64_t first, int64_t end) {
      block.run(segment, first, end, out + static_cast<int64_t>(head) * shape.v_head_dim, lse + head);
    });
  });
}

template void attention_forward(const AttentionShape&, const float*, const int32_t*, const float*, float*,
                                float*, device::Pool&);
template void attention_forward(const AttentionShape&, const double*, const int32_t*, const double*, double*,
                                double*, device::Pool&);

}  // namespace pleat::kernels
