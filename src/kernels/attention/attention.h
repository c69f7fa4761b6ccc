// Attention over packed rows: contract of kernel `attention` (program/ops.def) and its CPU entry points.
//
//   p[i, j, h] = softmax over visible j of scale * (q[i, h] . k[j, g]), g = h / (H / G)
//
//   out[i, h] = sum_j p[i, j, h] v[j, g]
//
//   lse[i, h] = log sum_j exp(scale * (q[i, h] . k[j, g]))
//
// Row i sees row j when doc_start[i] <= j <= i, and i - j < window where window > 0.
//
// Shapes: qkv, dqkv [T, (H + 2G) d], each row q heads | k heads | v heads; out, dout [T, H d]; lse [T, H];
// doc_start i32[T], 0 <= doc_start[i] <= i, non-decreasing (anything else stops the process). T rows are all
// sequences of a microbatch back to back; doc_start alone says what sees what. Everything else is the compute
// type (f32 or f64).
//
// Memory: scores exist only as tiles on the stack, at most 64 x 64; nothing is allocated. A thread needs up
// to 0.6 MB of stack at d = 256 and touches in proportion to d. H must be a multiple of G, d at most
// kMaxHeadDim.
//
// Backward rebuilds p from lse and uses ds = p (dp - D), D = rowsum(dout * out). It overwrites all of dqkv;
// no output may overlap an input.
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

namespace pleat::kernels {

struct AttentionShape {
  int64_t rows = 0;    // T
  int heads = 0;       // H
  int kv_heads = 0;    // G
  int head_dim = 0;    // d
  int64_t window = 0;  // 0: none
  double scale = 1.0;
};

constexpr int kMaxHeadDim = 256;

template <class T>
void attention_forward(const AttentionShape& shape, const T* qkv, const int32_t* doc_start, T* out, T* lse,
                       device::Pool& pool);

template <class T>
void attention_backward(const AttentionShape& shape, const T* dout, const T* qkv, const T* out, const T* lse,
                        const int32_t* doc_start, T* dqkv, device::Pool& pool);

}  // namespace pleat::kernels
