// Attention backward on the CPU: key rows in vector lanes (contract and reasons: attention.h).
//
// One tile of work is one key/value head and one chunk of rows, and owns their dq (of every query head in the
// group), dk and dv. It walks the blocks of keys from the first one its rows see to the end of the chunk:
//   keys before the chunk: queries of the chunk, dq only;
//   keys in the chunk: all later queries that see them, dk and dv; dq too where the query lies in the chunk.
#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_rows.h"
#include "kernels/attention/attention_tile.h"
#include "kernels/math/exp.h"
#include "kernels/math/reduce.h"

namespace pleat::kernels {
namespace {

using namespace attention;

// A multiple of both block sizes. 256 rows keep a chunk of a common head in the second-level cache.
constexpr int64_t kChunkRows = 256;

template <class T>
struct BackwardData {
  const AttentionShape& shape;
  const T* dout;
  const T* qkv;
  const T* out;
  const T* lse;
  const int32_t* doc_start;
  T* dqkv;
};

template <class T>
class BackwardChunk {
 public:
  BackwardChunk(const BackwardData<T>& data, int kv_head)
      : data_(data),
        shape_(data.shape),
        d_(shape_.head_dim),
        dv_(shape_.v_head_dim),
        vectors_d_((d_ + kL - 1) / kL),
        padded_d_(vectors_d_ * kL),
        group_(shape_.heads / shape_.kv_heads),
        ld_(shape_.width()),
        first_head_(kv_head * group_),
        k_column_(shape_.k_column(kv_head)),
        v_column_(shape_.v_column(kv_head)) {}

  void run(int64_t segment, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      T* dq = data_.dqkv + i * ld_ + static_cast<int64_t>(first_head_) * d_;
      for (int c = 0; c < group_ * d_; ++c) dq[c] = 0;
    }
    const int64_t lowest = first_visible(shape_, data_.doc_start, first);
    for (int64_t block = segment + (lowest - segment) / kRows * kRows; block < end; block += kRows)
      run_keys(block, first, end);
  }

 private:
  static constexpr int kL = kLanes<T>;
  static constexpr int kRows = kBlockRows<T>;
  using Vector = typename Lanes<T>::Vector;

  // One block of keys, which ends with its segment or after kRows rows.
  void run_keys(int64_t block, int64_t first, int64_t end) {
    key_begin_ = block;
    const bool inside = block >= first;
    key_end_ = inside ? std::min(block + kRows, end) : block + kRows;
    const int keys = static_cast<int>(key_end_ - block);
    vectors_ = (keys + kL - 1) / kL;
    const T* k = data_.qkv + block * ld_ + k_column_;
    const T* v = data_.qkv + block * ld_ + v_column_;
    transpose_padded(keys, vectors_ * kL, d_, k, ld_, keys_t_, kRows);
    transpose_padded(keys, vectors_ * kL, dv_, v, ld_, values_t_, kRows);
    // These keys only turn ds into dq, which takes the scale that queries_ carries everywhere else.
    copy_rows(keys, d_, padded_d_, static_cast<T>(shape_.scale), k, ld_, keys_, padded_d_);
    if (inside) {
      for (int i = 0; i < d_ * kRows; ++i) dkeys_t_[i] = 0;
      for (int i = 0; i < dv_ * kRows; ++i) dvalues_t_[i] = 0;
    }

    for (int h = 0; h < group_; ++h) {
      const int head = first_head_ + h;
      int64_t q = first;
      // The diagonal in strips of kL queries: each sees only the vectors of keys up to its own.
      if (inside) {
        for (q = block; q < key_end_; q += kL)
          run_queries(head, q, std::min(q + kL, key_end_), static_cast<int>(q - block) / kL + 1, true, true);
        q = key_end_;
      }
      for (; q < end; q += kRows) run_queries(head, q, std::min(q + kRows, end), vectors_, inside, true);
      if (inside)
        for (q = end; q < shape_.rows && first_visible(shape_, data_.doc_start, q) < key_end_; q += kRows)
          run_queries(head, q, std::min(q + kRows, shape_.rows), vectors_, true, false);
    }
    if (!inside) return;
    transpose(d_, keys, dkeys_t_, kRows, data_.dqkv + block * ld_ + k_column_, ld_);
    transpose(dv_, keys, dvalues_t_, kRows, data_.dqkv + block * ld_ + v_column_, ld_);
  }

  // Query rows [begin, end) of one head against vectors of the current keys below last_vector.
  void run_queries(int head, int64_t begin, int64_t end, int last_vector, bool into_keys, bool into_queries) {
    // first_visible never decreases: what sees no key of this block, another segment included, is at the end.
    while (end > begin && first_visible(shape_, data_.doc_start, end - 1) >= key_end_) --end;
    if (end == begin) return;
    const int rows = static_cast<int>(end - begin);
    const int64_t low = first_visible(shape_, data_.doc_start, begin);
    const int v = static_cast<int>(std::max<int64_t>(0, low - key_begin_)) / kL;
    const int num_vectors = last_vector - v;
    const int shift = v * kL;
    load_queries(head, begin, rows);
    multiply<Left::RowMajor, Sum::Start>(rows, num_vectors, d_, queries_, d_, keys_t_ + shift, kRows, probs_,
                                         kRows);
    multiply<Left::RowMajor, Sum::Start>(rows, num_vectors, dv_, douts_, dv_, values_t_ + shift, kRows,
                                         dscores_, kRows);
    const bool masked =
        begin < key_end_ || first_visible(shape_, data_.doc_start, end - 1) > key_begin_ + shift;
    if (masked)
      differentiate<true>(begin, rows, num_vectors, key_begin_ + shift);
    else
      differentiate<false>(begin, rows, num_vectors, key_begin_ + shift);
    if (into_keys) {
      multiply<Left::Transposed, Sum::Continue>(dv_, num_vectors, rows, douts_, dv_, probs_, kRows,
                                                dvalues_t_ + shift, kRows);
      multiply<Left::Transposed, Sum::Continue>(d_, num_vectors, rows, queries_, d_, dscores_, kRows,
                                                dkeys_t_ + shift, kRows);
    }
    if (into_queries) {
      const int depth = std::min(num_vectors * kL, static_cast<int>(key_end_ - key_begin_) - shift);
      multiply<Left::RowMajor, Sum::Start>(rows, vectors_d_, depth, dscores_, kRows,
                                           keys_ + shift * padded_d_, padded_d_, dqueries_, padded_d_);
      for (int i = 0; i < rows; ++i) {
        T* __restrict dq = data_.dqkv + (begin + i) * ld_ + static_cast<int64_t>(head) * d_;
        const T* add = dqueries_ + i * padded_d_;
        for (int c = 0; c < d_; ++c) dq[c] += add[c];
      }
    }
  }

  void load_queries(int head, int64_t begin, int rows) {
    const int64_t ldo = shape_.out_width();
    const int64_t column = static_cast<int64_t>(head) * dv_;
    copy_rows(rows, d_, d_, static_cast<T>(shape_.scale),
              data_.qkv + begin * ld_ + static_cast<int64_t>(head) * d_, ld_, queries_, d_);
    copy_rows(rows, dv_, dv_, T(1), data_.dout + begin * ldo + column, ldo, douts_, dv_);
    for (int i = 0; i < rows; ++i) {
      const T* dout = douts_ + i * dv_;
      const T* out = data_.out + (begin + i) * ldo + column;
      Vector partial = {};
      int c = 0;
      for (; c + kL <= dv_; c += kL)
        partial += *reinterpret_cast<const Vector*>(dout + c) * *reinterpret_cast<const Vector*>(out + c);
      T total = 0;
      for (; c < dv_; ++c) total += dout[c] * out[c];
      alignas(64) T lanes[kL];
      *reinterpret_cast<Vector*>(lanes) = partial;
#pragma GCC unroll 4
      for (int half = kL / 2; half > 0; half /= 2)
        for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
      row_dot_[i] = total + lanes[0];
      row_lse_[i] = data_.lse[(begin + i) * shape_.heads + head];
      row_low_[i] = static_cast<int32_t>(first_visible(shape_, data_.doc_start, begin + i));
    }
  }

  // Scores become probabilities, their gradient dp becomes ds. Hidden pairs become zeros, whatever stood
  // there.
  template <bool kMasked>
  void differentiate(int64_t begin, int rows, int num_vectors, int64_t first_key) {
    for (int i = 0; i < rows; ++i) {
      const T lse = row_lse_[i], dot = row_dot_[i];
      T* __restrict p = probs_ + i * kRows;
      T* __restrict ds = dscores_ + i * kRows;
      const int32_t low = row_low_[i] - static_cast<int32_t>(first_key);
      const int32_t high = static_cast<int32_t>(begin + i - first_key);
      for (int v = 0; v < num_vectors; ++v, p += kL, ds += kL)
        for (int l = 0; l < kL; ++l) {
          const int32_t key = v * kL + l;
          const bool seen = !kMasked || ((low <= key) & (key <= high));
          const T prob = fast_exp(p[l] - lse);
          const T slope = prob * (ds[l] - dot);
          p[l] = seen ? prob : T(0);
          ds[l] = seen ? slope : T(0);
        }
    }
  }

  const BackwardData<T>& data_;
  const AttentionShape& shape_;
  int d_, dv_, vectors_d_, padded_d_, group_;
  int64_t ld_;
  int first_head_;
  int64_t k_column_, v_column_;
  int64_t key_begin_ = 0, key_end_ = 0;
  int vectors_ = 0;  // of keys
  T row_dot_[kRows], row_lse_[kRows];
  int32_t row_low_[kRows];
  alignas(64) T keys_t_[kMaxHeadDim * kRows], values_t_[kMaxHeadDim * kRows];    // [d, key], [dv, key]
  alignas(64) T dkeys_t_[kMaxHeadDim * kRows], dvalues_t_[kMaxHeadDim * kRows];  // [d, key], [dv, key]
  alignas(64) T keys_[kRows * kMaxHeadDim];                                      // [key, padded d]
  alignas(64) T queries_[kRows * kMaxHeadDim], douts_[kRows * kMaxHeadDim];      // [query, d], [query, dv]
  alignas(64) T dqueries_[kRows * kMaxHeadDim];                                  // [query, padded d]
  alignas(64) T probs_[kRows * kRows], dscores_[kRows * kRows];                  // [query, key]
};

}  // namespace

template <class T>
void attention_backward(const AttentionShape& shape, const T* dout, const T* qkv, const T* out, const T* lse,
                        const int32_t* doc_start, T* dqkv, device::Pool& pool) {
  check_doc_start(shape, doc_start);
  const BackwardData<T> data{shape, dout, qkv, out, lse, doc_start, dqkv};
  pool.for_each_tile(num_spans(shape, kChunkRows) * shape.kv_heads, [&](int64_t tile) {
    BackwardChunk<T> chunk(data, static_cast<int>(tile % shape.kv_heads));
    for_each_block(shape, doc_start, kChunkRows, tile / shape.kv_heads,
                   [&](int64_t segment, int64_t first, int64_t end) { chunk.run(segment, first, end); });
  });
}

template <class T>
void attention_backward_sinks(const AttentionShape& shape, const T* dout, const T* out, const T* lse,
                              const T* sinks, Into into, T* dsinks, device::Pool& pool) {
  const int64_t dv = shape.v_head_dim, ldo = shape.out_width();
  pool.for_each_tile(shape.heads, [&](int64_t head) {
    const double sink = sinks[head];
    double sum = 0;
    for (int64_t i = 0; i < shape.rows; ++i) {
      const int64_t at = i * ldo + head * dv;
      sum -=
          fast_exp(sink - static_cast<double>(lse[i * shape.heads + head])) * dot_of(dout + at, out + at, dv);
    }
    dsinks[head] = static_cast<T>(into == Into::Accumulate ? dsinks[head] + sum : sum);
  });
}

template void attention_backward(const AttentionShape&, const float*, const float*, const float*,
                                 const float*, const int32_t*, float*, device::Pool&);
template void attention_backward(const AttentionShape&, const double*, const double*, const double*,
                                 const double*, const int32_t*, double*, device::Pool&);
template void attention_backward_sinks(const AttentionShape&, const float*, const float*, const float*,
                                       const float*, Into, float*, device::Pool&);
template void attention_backward_sinks(const AttentionShape&, const double*, const double*, const double*,
                                       const double*, Into, double*, device::Pool&);

}  // namespace pleat::kernels
