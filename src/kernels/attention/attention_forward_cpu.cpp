// Attention forward on the CPU: online softmax, query rows in vector lanes (contracts: attention.h,
// context_attention.h).
//
// One tile of work is one head and one block of query rows. Scores are held transposed, [key, query], so that
// the maximum and the sum of a row run down a lane.
#include <cmath>
#include <limits>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_rows.h"
#include "kernels/attention/attention_tile.h"
#include "kernels/attention/context_attention.h"
#include "kernels/attention/ring_attention.h"
#include "kernels/math/exp.h"

namespace pleat::kernels {
namespace {

using namespace attention;

// Columns of row 0: q of head 0 (rows of their own), k and v of key/value head 0.
template <class T>
struct ForwardData {
  const AttentionShape& shape;
  const T* q;
  int64_t ldq;
  const T *k, *v;
  int64_t ldkv;
  const RowRun* key_runs;  // which rows the keys are
  int64_t num_key_runs;
  const int32_t* doc_start;
  const T* sinks;
  const T *prior_out, *prior_lse;  // of keys seen before; absent, or both
  T *out, *lse;
};

template <class T>
class ForwardBlock {
 public:
  ForwardBlock(const ForwardData<T>& data, int head)
      : data_(data),
        shape_(data.shape),
        doc_start_(data.doc_start),
        d_(shape_.head_dim),
        dv_(shape_.v_head_dim),
        head_(head),
        ld_(data.ldkv),
        q_(data.q + static_cast<int64_t>(head) * d_),
        k_(data.k + static_cast<int64_t>(shape_.kv_head_of(head)) * d_),
        v_(data.v + static_cast<int64_t>(shape_.kv_head_of(head)) * dv_) {
    const T* sinks = data.sinks;
    if (!sinks) return;
    // Finite for any sink, as below; a NaN sink passes on through the sum.
    start_max_ = std::max(start_max_, sinks[head]);
    start_sum_ = fast_exp(sinks[head] - start_max_);
  }

  // Rows [first, end) of one segment and inside one block of kRows rows counted from its start; their queries
  // and results lie at rows from `own` on.
  void run(int64_t segment, int64_t first, int64_t end, int64_t own) {
    const int rows = static_cast<int>(end - first);
    vectors_ = (rows + kL - 1) / kL;
    transpose_padded(rows, vectors_ * kL, d_, q_ + own * data_.ldq, data_.ldq, queries_, kRows);
    // Queries are scaled, not keys, in both directions: backward then rebuilds the very same scores.
    const T scale = static_cast<T>(shape_.scale);
    for (int c = 0; c < d_; ++c)
      for (int i = 0; i < vectors_ * kL; i += kL)
        *reinterpret_cast<Vector*>(queries_ + c * kRows + i) *= scale;
    const int64_t ldo = shape_.out_width(), column = static_cast<int64_t>(head_) * dv_;
    bool has_past = data_.prior_out != nullptr;
    if (has_past)
      transpose_padded(rows, vectors_ * kL, dv_, data_.prior_out + own * ldo + column, ldo, result_, kRows);
    else
      for (int c = 0; c < dv_; ++c)
        for (int i = 0; i < vectors_ * kL; i += kL)
          *reinterpret_cast<Vector*>(result_ + c * kRows + i) = Vector{};
    for (int i = 0; i < vectors_ * kL; ++i) {
      // Lanes past the last row see nothing.
      low_[i] = i < rows ? static_cast<int32_t>(first_visible(shape_, doc_start_, first + i))
                         : std::numeric_limits<int32_t>::max();
      max_[i] = start_max_;
      sum_[i] = start_sum_;
      if (!has_past || i >= rows) continue;
      // What was seen before is one key with probability 1: a row that sees nothing new keeps its bits.
      max_[i] = data_.prior_lse[(own + i) * shape_.heads + head_];
      sum_[i] = 1;
    }

    // Blocks of keys are cut like blocks of queries, so only the last one crosses the diagonal.
    for (const RowRun* run = data_.key_runs; run < data_.key_runs + data_.num_key_runs; ++run) {
      const int64_t lowest = std::max<int64_t>(low_[0], run->row), highest = std::min(end, run->end());
      if (lowest >= highest) continue;
      for (int64_t block = segment + (lowest - segment) / kRows * kRows; block < highest; block += kRows) {
        const int64_t begin = std::max(block, lowest), at = begin - run->row + run->own;
        const int keys = static_cast<int>(std::min(block + kRows, highest) - begin);
        copy_rows(keys, d_, d_, T(1), k_ + at * ld_, ld_, keys_, d_);
        copy_rows(keys, dv_, dv_, T(1), v_ + at * ld_, ld_, values_, dv_);
        // A run may begin behind `first`: then a strip of keys is seen by fewer vectors than it is given to.
        const bool diagonal = block == first;
        score(keys, diagonal);
        if (begin + keys > first + 1 || low_[rows - 1] > begin) hide(begin, keys, first, diagonal);
        for (int v = 0; v < vectors_; ++v)
          soften(v, diagonal ? std::min(keys, (v + 1) * kL) : keys, has_past);
        gather(keys, diagonal);
        has_past = true;
      }
    }

    for (int c = 0; c < dv_; ++c)
      for (int i = 0; i < vectors_ * kL; i += kL)
        *reinterpret_cast<Vector*>(result_ + c * kRows + i) /= *reinterpret_cast<const Vector*>(sum_ + i);
    transpose(dv_, rows, result_, kRows, data_.out + own * ldo + column, ldo);
    for (int i = 0; i < rows; ++i) data_.lse[(own + i) * shape_.heads + head_] = max_[i] + std::log(sum_[i]);
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

  const ForwardData<T>& data_;
  const AttentionShape& shape_;
  const int32_t* doc_start_;
  int d_, dv_, head_;
  int64_t ld_;  // of keys and values
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
  const RowRun all{0, 0, shape.rows};
  const int64_t ld = shape.width();
  const ForwardData<T> data{shape,
                            qkv,
                            ld,
                            qkv + shape.k_column(0),
                            qkv + shape.v_column(0),
                            ld,
                            &all,
                            1,
                            doc_start,
                            sinks,
                            nullptr,
                            nullptr,
                            out,
                            lse};
  const int64_t spans = num_spans(shape, kBlockRows<T>);
  // Later blocks see more keys: largest work first.
  pool.for_each_tile(spans * shape.heads, [&](int64_t tile) {
    ForwardBlock<T> block(data, static_cast<int>(tile % shape.heads));
    for_each_block(
        shape, doc_start, kBlockRows<T>, spans - 1 - tile / shape.heads,
        [&](int64_t segment, int64_t first, int64_t end) { block.run(segment, first, end, first); });
  });
}

namespace {

template <class T>
void run_queries(const ForwardData<T>& data, const ContextRows& queries, device::Pool& pool) {
  const AttentionShape& shape = data.shape;
  const int64_t spans = (queries.count + kBlockRows<T> - 1) / kBlockRows<T>;
  pool.for_each_tile(spans * shape.heads, [&](int64_t tile) {
    ForwardBlock<T> block(data, static_cast<int>(tile % shape.heads));
    for_each_query_block(queries, data.doc_start, kBlockRows<T>, spans - 1 - tile / shape.heads,
                         [&](int64_t segment, int64_t own, int64_t end) {
                           const int64_t first = queries.row[own];
                           block.run(segment, first, first + end - own, own);
                         });
  });
}

}  // namespace

template <class T>
void context_attention_forward(const AttentionShape& shape, const ContextRows& queries, const T* qkv,
                               const T* kv, const int32_t* doc_start, const T* sinks, T* out, T* lse,
                               device::Pool& pool) {
  check_doc_start(shape, doc_start);
  check_rows(shape, "row", queries);
  const RowRun all{0, 0, shape.rows};
  run_queries<T>({shape, qkv, shape.width(), kv, kv + shape.kv_v_column(), shape.kv_width(), &all, 1,
                  doc_start, sinks, nullptr, nullptr, out, lse},
                 queries, pool);
}

template <class T>
void ring_attention_forward(const AttentionShape& shape, const ContextRows& queries, const ContextRows& keys,
                            const T* qkv, const T* kv, const int32_t* doc_start, const T* sinks,
                            const T* prior_out, const T* prior_lse, T* out, T* lse, device::Pool& pool) {
  check_doc_start(shape, doc_start);
  check_rows(shape, "row", queries);
  check_rows(shape, "key_row", keys);
  RowRun runs[kMaxRuns];
  ForwardData<T> data{shape,
                      qkv,
                      shape.width(),
                      kv,
                      kv + shape.kv_v_column(),
                      shape.kv_width(),
                      runs,
                      0,
                      doc_start,
                      sinks,
                      prior_out,
                      prior_lse,
                      out,
                      lse};
  int64_t next = 0;
  do {
    data.num_key_runs = take_runs(keys, next, runs);
    run_queries(data, queries, pool);
    // A block reads its own rows of the past before it writes them.
    data.prior_out = out, data.prior_lse = lse;
  } while (next < keys.count);
}

template void attention_forward(const AttentionShape&, const float*, const int32_t*, const float*, float*,
                                float*, device::Pool&);
template void attention_forward(const AttentionShape&, const double*, const int32_t*, const double*, double*,
                                double*, device::Pool&);
template void context_attention_forward(const AttentionShape&, const ContextRows&, const float*, const float*,
                                        const int32_t*, const float*, float*, float*, device::Pool&);
template void context_attention_forward(const AttentionShape&, const ContextRows&, const double*,
                                        const double*, const int32_t*, const double*, double*, double*,
                                        device::Pool&);

template void ring_attention_forward(const AttentionShape&, const ContextRows&, const ContextRows&,
                                     const float*, const float*, const int32_t*, const float*, const float*,
                                     const float*, float*, float*, device::Pool&);
template void ring_attention_forward(const AttentionShape&, const ContextRows&, const ContextRows&,
                                     const double*, const double*, const int32_t*, const double*,
                                     const double*, const double*, double*, double*, device::Pool&);

}  // namespace pleat::kernels
