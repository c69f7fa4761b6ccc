// Attention backward on the CPU: key rows in vector lanes (contracts and reasons: attention.h,
// context_attention.h).
//
// One tile of work is one key/value head and one chunk of rows, and owns their dq (of every query head in the
// group), dk and dv. It walks the blocks of keys from the first one its rows see to the end of the chunk:
//   keys before the chunk: queries of the chunk, dq only;
//   keys in the chunk: all later queries that see them, dk and dv; dq too where the query lies in the chunk.
// Queries and keys come in runs: rows one after another both in the microbatch and in memory. Plain attention
// has one of each.
#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_rows.h"
#include "kernels/attention/attention_tile.h"
#include "kernels/attention/context_attention.h"
#include "kernels/attention/ring_attention.h"
#include "kernels/math/exp.h"
#include "kernels/math/reduce.h"

namespace pleat::kernels {
namespace {

using namespace attention;

// A multiple of both block sizes. 256 rows keep a chunk of a common head in the second-level cache.
constexpr int64_t kChunkRows = 256;

// Columns of row 0: q and dq of head 0 (rows of the queries, as dout, out and lse), k, v, dk and dv of
// key/value head 0.
template <class T>
struct BackwardData {
  const AttentionShape& shape;
  const T *dout, *out, *lse;
  const T* q;
  int64_t ldq;
  const T *k, *v;
  int64_t ldkv;
  const int32_t* doc_start;
  T* dq;
  int64_t lddq;
  T *dk, *dv;
  int64_t lddkv;
  const RowRun* runs;  // which rows the queries are
  int64_t num_runs;
  const RowRun* key_runs;  // and the keys
  int64_t num_key_runs;
  Into queries_into, keys_into;
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
        first_head_(kv_head * group_),
        k_column_(static_cast<int64_t>(kv_head) * d_),
        v_column_(static_cast<int64_t>(kv_head) * dv_) {}

  void run(int64_t segment, int64_t first, int64_t end) {
    int64_t lowest = first;
    for_each_run(first, end, [&](const RowRun& run, int64_t begin, int64_t run_end) {
      lowest = std::min(lowest, first_visible(shape_, data_.doc_start, begin));
      for (int64_t i = begin; i < run_end && data_.queries_into == Into::Overwrite; ++i) {
        T* dq = dq_of(run, i, first_head_);
        for (int c = 0; c < group_ * d_; ++c) dq[c] = 0;
      }
    });
    for (int64_t block = segment + (lowest - segment) / kRows * kRows; block < end; block += kRows)
      for (const RowRun* run = data_.key_runs; run < data_.key_runs + data_.num_key_runs; ++run) {
        const int64_t b = std::max(block, run->row), e = std::min({block + kRows, run->end(), end});
        if (b < e) run_keys(b, e, b - run->row + run->own, first, end);
      }
  }

 private:
  static constexpr int kL = kLanes<T>;
  static constexpr int kRows = kBlockRows<T>;
  using Vector = typename Lanes<T>::Vector;

  // Calls body(run, b, e) for the queries [b, e) that each run has among rows [begin, end).
  template <class Body>
  void for_each_run(int64_t begin, int64_t end, const Body& body) {
    for (const RowRun* run = data_.runs; run < data_.runs + data_.num_runs; ++run) {
      const int64_t b = std::max(begin, run->row), e = std::min(end, run->end());
      if (b < e) body(*run, b, e);
    }
  }

  // Calls body(run, b, e) for every piece [b, e) of a run inside a strip of `step` rows counted from `begin`,
  // up to `end` or the first piece that does not see the current keys.
  template <class Body>
  void for_each_strip(int64_t begin, int64_t end, int64_t step, const Body& body) {
    for_each_run(begin, end, [&](const RowRun& run, int64_t run_begin, int64_t run_end) {
      int64_t b = run_begin;
      for (int64_t q = begin + (b - begin) / step * step; q < run_end; q += step, b = q) {
        if (first_visible(shape_, data_.doc_start, b) >= key_end_) break;
        body(run, b, std::min(q + step, run_end));
      }
    });
  }

  T* dq_of(const RowRun& run, int64_t row, int head) const {
    return data_.dq + (row - run.row + run.own) * data_.lddq + static_cast<int64_t>(head) * d_;
  }

  // Keys [key_begin, key_end) of one block, all before the chunk [first, end) or all in it; they lie at rows
  // from `own` on.
  void run_keys(int64_t key_begin, int64_t key_end, int64_t own, int64_t first, int64_t end) {
    key_begin_ = key_begin;
    key_end_ = key_end;
    const bool inside = key_begin >= first;
    const int keys = static_cast<int>(key_end - key_begin);
    vectors_ = (keys + kL - 1) / kL;
    const T* k = data_.k + own * data_.ldkv + k_column_;
    const T* v = data_.v + own * data_.ldkv + v_column_;
    T* dk = data_.dk + own * data_.lddkv + k_column_;
    T* dv = data_.dv + own * data_.lddkv + v_column_;
    transpose_padded(keys, vectors_ * kL, d_, k, data_.ldkv, keys_t_, kRows);
    transpose_padded(keys, vectors_ * kL, dv_, v, data_.ldkv, values_t_, kRows);
    // These keys only turn ds into dq, which takes the scale that queries_ carries everywhere else.
    copy_rows(keys, d_, padded_d_, static_cast<T>(shape_.scale), k, data_.ldkv, keys_, padded_d_);
    if (inside && data_.keys_into == Into::Accumulate) {
      transpose_padded(keys, vectors_ * kL, d_, dk, data_.lddkv, dkeys_t_, kRows);
      transpose_padded(keys, vectors_ * kL, dv_, dv, data_.lddkv, dvalues_t_, kRows);
    } else if (inside) {
      for (int i = 0; i < d_ * kRows; ++i) dkeys_t_[i] = 0;
      for (int i = 0; i < dv_ * kRows; ++i) dvalues_t_[i] = 0;
    }

    for (int h = 0; h < group_; ++h) {
      const int head = first_head_ + h;
      const auto queries = [&](const RowRun& run, int64_t b, int64_t e) {
        run_queries(head, run, b, e, vectors_, inside, true);
      };
      if (!inside) {
        for_each_strip(first, end, kRows, queries);
        continue;
      }
      // The diagonal in strips of kL queries: each sees only the vectors of keys up to its own.
      for_each_strip(key_begin, key_end_, kL, [&](const RowRun& run, int64_t b, int64_t e) {
        run_queries(head, run, b, e, static_cast<int>(b - key_begin) / kL + 1, true, true);
      });
      for_each_strip(key_end_, end, kRows, queries);
      for_each_strip(end, shape_.rows, kRows, [&](const RowRun& run, int64_t b, int64_t e) {
        run_queries(head, run, b, e, vectors_, true, false);
      });
    }
    if (!inside) return;
    transpose(d_, keys, dkeys_t_, kRows, dk, data_.lddkv);
    transpose(dv_, keys, dvalues_t_, kRows, dv, data_.lddkv);
  }

  // Query rows [begin, end) of a run and one head against vectors of the current keys below last_vector.
  void run_queries(int head, const RowRun& run, int64_t begin, int64_t end, int last_vector, bool into_keys,
                   bool into_queries) {
    // first_visible never decreases: what sees no key of this block, another segment included, is at the end.
    while (end > begin && first_visible(shape_, data_.doc_start, end - 1) >= key_end_) --end;
    if (end == begin) return;
    const int rows = static_cast<int>(end - begin);
    const int64_t low = first_visible(shape_, data_.doc_start, begin);
    const int v = static_cast<int>(std::max<int64_t>(0, low - key_begin_)) / kL;
    const int num_vectors = last_vector - v;
    const int shift = v * kL;
    load_queries(head, begin, begin - run.row + run.own, rows);
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
        T* __restrict dq = dq_of(run, begin + i, head);
        const T* add = dqueries_ + i * padded_d_;
        for (int c = 0; c < d_; ++c) dq[c] += add[c];
      }
    }
  }

  void load_queries(int head, int64_t begin, int64_t own, int rows) {
    const int64_t ldo = shape_.out_width();
    const int64_t column = static_cast<int64_t>(head) * dv_;
    copy_rows(rows, d_, d_, static_cast<T>(shape_.scale),
              data_.q + own * data_.ldq + static_cast<int64_t>(head) * d_, data_.ldq, queries_, d_);
    copy_rows(rows, dv_, dv_, T(1), data_.dout + own * ldo + column, ldo, douts_, dv_);
    for (int i = 0; i < rows; ++i) {
      const T* dout = douts_ + i * dv_;
      const T* out = data_.out + (own + i) * ldo + column;
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
      row_lse_[i] = data_.lse[(own + i) * shape_.heads + head];
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

template <class T>
void run_chunks(const BackwardData<T>& data, device::Pool& pool) {
  const AttentionShape& shape = data.shape;
  pool.for_each_tile(num_spans(shape, kChunkRows) * shape.kv_heads, [&](int64_t tile) {
    BackwardChunk<T> chunk(data, static_cast<int>(tile % shape.kv_heads));
    for_each_block(shape, data.doc_start, kChunkRows, tile / shape.kv_heads,
                   [&](int64_t segment, int64_t first, int64_t end) { chunk.run(segment, first, end); });
  });
}

}  // namespace

template <class T>
void attention_backward(const AttentionShape& shape, const T* dout, const T* qkv, const T* out, const T* lse,
                        const int32_t* doc_start, T* dqkv, device::Pool& pool) {
  check_doc_start(shape, doc_start);
  const int64_t k = shape.k_column(0), v = shape.v_column(0), ld = shape.width();
  const RowRun all{0, 0, shape.rows};
  run_chunks<T>({shape,          dout, out,      lse,      qkv, ld,   qkv + k, qkv + v, ld, doc_start,
                 dqkv,           ld,   dqkv + k, dqkv + v, ld,  &all, 1,       &all,    1,  Into::Overwrite,
                 Into::Overwrite},
                pool);
}

namespace {

// `data` knows everything but the runs of queries.
template <class T>
void run_queries(BackwardData<T>& data, const ContextRows& queries, device::Pool& pool) {
  RowRun runs[kMaxRuns];
  int64_t next = 0;
  data.keys_into = Into::Overwrite;
  data.runs = runs;
  do {
    data.num_runs = take_runs(queries, next, runs);
    run_chunks(data, pool);
    data.keys_into = Into::Accumulate;
  } while (next < queries.count);
}

}  // namespace

template <class T>
void context_attention_backward(const AttentionShape& shape, const ContextRows& queries, const T* dout,
                                const T* qkv, const T* kv, const T* out, const T* lse,
                                const int32_t* doc_start, T* dq, T* dkv, device::Pool& pool) {
  check_doc_start(shape, doc_start);
  check_rows(shape, "row", queries);
  const int64_t v = shape.kv_v_column(), ld = shape.kv_width(), lddq = int64_t{shape.heads} * shape.head_dim;
  const RowRun all{0, 0, shape.rows};
  BackwardData<T> data{shape,
                       dout,
                       out,
                       lse,
                       qkv,
                       shape.width(),
                       kv,
                       kv + v,
                       ld,
                       doc_start,
                       dq,
                       lddq,
                       dkv,
                       dkv + v,
                       ld,
                       nullptr,
                       0,
                       &all,
                       1,
                       Into::Overwrite,
                       Into::Overwrite};
  run_queries(data, queries, pool);
}

template <class T>
void ring_attention_backward(const AttentionShape& shape, const ContextRows& queries, const ContextRows& keys,
                             const T* dout, const T* qkv, const T* kv, const T* out, const T* lse,
                             const int32_t* doc_start, Into into, T* dq, T* dkv, device::Pool& pool) {
  check_doc_start(shape, doc_start);
  check_rows(shape, "row", queries);
  check_rows(shape, "key_row", keys);
  const int64_t v = shape.kv_v_column(), ld = shape.kv_width(), lddq = int64_t{shape.heads} * shape.head_dim;
  RowRun runs[kMaxRuns];
  BackwardData<T> data{shape,  dout,    out,       lse,  qkv,  shape.width(), kv,
                       kv + v, ld,      doc_start, dq,   lddq, dkv,           dkv + v,
                       ld,     nullptr, 0,         runs, 0,    into,          Into::Overwrite};
  int64_t next = 0;
  do {
    data.num_key_runs = take_runs(keys, next, runs);
    run_queries(data, queries, pool);
    data.queries_into = Into::Accumulate;
  } while (next < keys.count);
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
template void context_attention_backward(const AttentionShape&, const ContextRows&, const float*,
                                         const float*, const float*, const float*, const float*,
                                         const int32_t*, float*, float*, device::Pool&);
template void context_attention_backward(const AttentionShape&, const ContextRows&, const double*,
                                         const double*, const double*, const double*, const double*,
                                         const int32_t*, double*, double*, device::Pool&);
template void attention_backward_sinks(const AttentionShape&, const float*, const float*, const float*,
                                       const float*, Into, float*, device::Pool&);
template void attention_backward_sinks(const AttentionShape&, const double*, const double*, const double*,
                                       const double*, Into, double*, device::Pool&);

template void ring_attention_backward(const AttentionShape&, const ContextRows&, const ContextRows&,
                                      const float*, const float*, const float*, const float*, const float*,
                                      const int32_t*, Into, float*, float*, device::Pool&);
template void ring_attention_backward(const AttentionShape&, const ContextRows&, const ContextRows&,
                                      const double*, const double*, const double*, const double*,
                                      const double*, const int32_t*, Into, double*, double*, device::Pool&);

}  // namespace pleat::kernels
