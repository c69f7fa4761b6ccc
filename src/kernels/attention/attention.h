// Attention over packed rows: contract of kernel `attention` (program/ops.def) and its CPU entry points.
//
//   p[i, j, h] = exp(scale * (q[i, h] . k[j, g]) - lse[i, h]) for visible j, g = h / (H / G)
//
//   out[i, h] = sum_j p[i, j, h] v[j, g]
//
//   lse[i, h] = log(sum_j exp(scale * (q[i, h] . k[j, g])) + exp(sinks[h]))
//
// Row i sees row j when doc_start[i] <= j <= i, and i - j < window where window > 0. Without sinks the last
// term is absent and p is a softmax over the visible rows; a sink is a learned logit that takes its share of
// the probability and carries no value.
//
// Shapes: qkv, dqkv [T, (H + G) d + G dv], each row q heads (d each) | k heads (d) | v heads (dv); out, dout
// [T, H dv]; lse [T, H]; sinks [H]; doc_start i32[T], 0 <= doc_start[i] <= i, non-decreasing (anything else
// stops the process). T rows are all sequences of a microbatch back to back; doc_start alone says what sees
// what. Everything else is the compute type (f32 or f64).
//
// Memory: scores exist only as tiles on the stack, at most 64 x 64; nothing is allocated. A thread needs up
// to 0.6 MB of stack at d = 256 and touches in proportion to d. H must be a multiple of G, d and dv at
// most kMaxHeadDim.
//
// Backward rebuilds p from lse and uses ds = p (dp - D), D = rowsum(dout * out). It overwrites all of dqkv;
// no output may overlap an input. lse holds the sink, so nothing else of it is needed there. The gradient of
// the sinks is dsinks[h] (+)= -sum_i exp(sinks[h] - lse[i, h]) D[i, h], one head a tile, rows ascending, in
// double.
//
// Bits. A row with doc_start[i] == i starts a *segment*: nothing after it sees anything before it. Blocks of
// rows are counted from the start of their segment, every sum runs over blocks in ascending order, and a
// block is computed by one thread. So the bits of a document depend neither on the number of threads nor on
// its place in the microbatch nor on its neighbours: packed documents give exactly what each gives alone.
//
// Why this shape: the forward keeps query rows in vector lanes, so softmax needs no sums across lanes and any
// d works; the backward keeps key rows in lanes, so dk and dv stay in a tile while queries stream by.
// Backward work is cut into chunks of kChunkRows rows that own their dq, dk and dv. Inside a chunk each score
// tile is built once (5 products); pairs of rows in two chunks are built twice, once for dk and dv and once
// for dq (7 products). So documents up to a chunk cost the minimum, and one long document with one key/value
// head still spreads over threads, evenly.
#pragma once

#include <cstdint>

#include "device/cpu/pool.h"
#include "kernels/invocation.h"
#include "program/limits.h"

namespace pleat::kernels {

struct AttentionShape {
  int64_t rows = 0;    // T
  int heads = 0;       // H
  int kv_heads = 0;    // G
  int head_dim = 0;    // d
  int v_head_dim = 0;  // dv
  int64_t window = 0;  // 0: none
  double scale = 1.0;

  int64_t width() const { return v_column(kv_heads); }
  int64_t q_width() const { return static_cast<int64_t>(heads) * head_dim; }
  int64_t out_width() const { return static_cast<int64_t>(heads) * v_head_dim; }
  int kv_head_of(int head) const { return head / (heads / kv_heads); }
  int64_t k_column(int kv_head) const { return static_cast<int64_t>(heads + kv_head) * head_dim; }
  int64_t v_column(int kv_head) const {
    return k_column(kv_heads) + static_cast<int64_t>(kv_head) * v_head_dim;
  }
  // Of rows that hold keys and values only (context_attention.h).
  int64_t kv_width() const { return static_cast<int64_t>(kv_heads) * (head_dim + v_head_dim); }
  int64_t kv_v_column() const { return static_cast<int64_t>(kv_heads) * head_dim; }
};

// The attributes; contract.h checks them.
inline AttentionShape attention_shape(const Invocation& call, int64_t rows) {
  AttentionShape shape;
  shape.rows = rows;
  shape.heads = static_cast<int>(call.integer("heads"));
  shape.kv_heads = static_cast<int>(call.integer("kv_heads"));
  shape.head_dim = static_cast<int>(call.integer("head_dim"));
  shape.v_head_dim = static_cast<int>(call.integer("v_head_dim"));
  shape.window = call.integer("window");
  shape.scale = call.attr("scale");
  return shape;
}

constexpr int kMaxHeadDim = static_cast<int>(program::kMaxHeadDim);

// sinks may be nullptr.
template <class T>
void attention_forward(const AttentionShape& shape, const T* qkv, const int32_t* doc_start, const T* sinks,
                       T* out, T* lse, device::Pool& pool);

template <class T>
void attention_backward(const AttentionShape& shape, const T* dout, const T* qkv, const T* out, const T* lse,
                        const int32_t* doc_start, T* dqkv, device::Pool& pool);

// Looks at rows, heads and v_head_dim of the shape only.
template <class T>
void attention_backward_sinks(const AttentionShape& shape, const T* dout, const T* out, const T* lse,
                              const T* sinks, Into into, T* dsinks, device::Pool& pool);

}  // namespace pleat::kernels
