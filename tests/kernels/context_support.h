// Attention cut over ranks that share a sequence: cases, and attention of all rows at once to compare with.
#pragma once

#include <algorithm>
#include <numeric>

#include "kernels/dense_support.h"

namespace pleat::kernels::testing {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;
using RowList = std::vector<int64_t>;

struct Case {
  std::vector<int> documents;
  int heads = 2, kv_heads = 1, d = 8, dv = 8;
  int window = 0;
  bool has_sinks = false;

  int64_t rows() const { return std::accumulate(documents.begin(), documents.end(), int64_t{0}); }
  int64_t q_width() const { return int64_t{1} * heads * d; }
  int64_t kv_width() const { return int64_t{1} * kv_heads * (d + dv); }
  int64_t width() const { return q_width() + kv_width(); }
  int64_t out_width() const { return int64_t{1} * heads * dv; }
  program::AttrSet attrs() const {
    return {{"deterministic", 1},
            {"documents", 1},
            {"head_dim", double(d)},
            {"heads", double(heads)},
            {"kv_heads", double(kv_heads)},
            {"scale", 0.3},
            {"seq_len", double(std::max<int64_t>(rows(), 1))},
            {"v_head_dim", double(dv)},
            {"window", double(window)}};
  }
  Tensor doc_start() const {
    Tensor t = Tensor::zeros(Dtype::I32, {rows()});
    int64_t row = 0;
    for (int length : documents)
      for (int64_t i = 0, start = row; i < length; ++i) t.set(row++, double(start));
    return t;
  }
};

// Rows `list` and columns [begin, end) of a 2-d tensor.
inline Tensor part_of(const Tensor& t, const RowList& list, int64_t begin, int64_t end) {
  Tensor y = Tensor::zeros(t.dtype, {int64_t(list.size()), end - begin});
  for (size_t i = 0; i < list.size(); ++i)
    for (int64_t c = begin; c < end; ++c)
      y.set(int64_t(i) * (end - begin) + c - begin, t.at(list[i] * t.shape[1] + c));
  return y;
}
inline Tensor part_of(const Tensor& t, const RowList& list) { return part_of(t, list, 0, t.shape[1]); }
inline RowList all_rows(int64_t count) {
  RowList list(size_t(count), 0);
  std::iota(list.begin(), list.end(), 0);
  return list;
}

struct Whole {
  Tensor qkv, dout, doc_start, sinks, out, lse, dqkv, dsinks;

  Whole(const Case& c, Dtype dtype)
      : qkv(Tensor::normal(dtype, {c.rows(), c.width()}, 1)),
        dout(Tensor::normal(dtype, {c.rows(), c.out_width()}, 2)),
        doc_start(c.doc_start()),
        sinks(Tensor::normal(dtype, {c.heads}, 3)),
        out(Tensor::nan(dtype, {c.rows(), c.out_width()})),
        lse(Tensor::nan(dtype, {c.rows(), c.heads})),
        dqkv(Tensor::nan(dtype, {c.rows(), c.width()})),
        dsinks(Tensor::zeros(dtype, {c.heads})) {}

  void run(const Case& c) {
    using testing::out;
    call(KernelKind::attention, Phase::Forward,
         {in(qkv), in(doc_start), c.has_sinks ? in(sinks) : none(), out(this->out), out(lse)}, c.attrs());
    call(KernelKind::attention, Phase::BackwardInput,
         {in(dout), in(qkv), in(this->out), in(lse), in(doc_start), out(dqkv)}, c.attrs());
    if (c.has_sinks)
      call(KernelKind::attention, Phase::BackwardWeight,
           {in(dout), in(this->out), in(lse), in(sinks), out(dsinks)}, c.attrs());
  }
};

// The load-balanced split: 2 n chunks, rank r has chunks r and 2 n - 1 - r. Chunks need not be equal.
inline std::vector<RowList> zigzag(int64_t rows, int64_t n) {
  std::vector<RowList> ranks(size_t(n), RowList{});
  for (int64_t r = 0; r < n; ++r)
    for (int64_t chunk : {r, 2 * n - 1 - r})
      for (int64_t i = rows * chunk / (2 * n); i < rows * (chunk + 1) / (2 * n); ++i)
        ranks[size_t(r)].push_back(i);
  return ranks;
}

}  // namespace pleat::kernels::testing
