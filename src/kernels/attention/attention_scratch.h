// Scratch of attention on a GPU, before it is known whether cuDNN or the own kernels compute: room for either.
//
// The own backward keeps a number per row and head, or two of them and one per row (those of Hopper). cuDNN is
// granted what the largest plan of 9.x asks for. Its backward: dq in f32 and one number per row and head, and
// where query heads share keys, dk and dv of every query head in bf16. The deterministic form keeps scores instead
// of dq, at most kMaxScoreBytes of them at a time.
#pragma once

#include <algorithm>

#include "kernels/attention/attention_cudnn.h"
#include "kernels/cuda/scratch.h"

namespace pleat::kernels::attention {

// What the stage asks of cuDNN.
inline CudnnCase cudnn_case(const Arg& qkv, const Invocation& call, bool backward) {
  const AttentionShape shape = attention_shape(call, qkv.dim(0));
  const int64_t seq_len = call.integer("seq_len");
  return {shape, seq_len, call.attr("documents") != 0 ? max_documents(shape.rows, seq_len) : 0, backward,
          call.attr("deterministic") != 0};
}

// ---- Own kernels

// dout * out, one f32 per row and head.
inline int64_t row_dot_bytes(int64_t rows, int64_t heads) { return rows * heads * 4; }

// Of Hopper: two f32 per row and head, and where a row's keys begin; whole blocks of rows.
constexpr int kStreamRows = 64;
inline int64_t query_number_bytes(int64_t rows, int64_t heads) {
  return base::round_up(rows, kStreamRows) * (8 * heads + 4);
}
inline int64_t own_backward_bytes(const AttentionShape& shape, tensor::Dtype dtype) {
  return dtype == tensor::Dtype::BF16 ? query_number_bytes(shape.rows, shape.heads)
                                      : row_dot_bytes(shape.rows, shape.heads);
}

// Partial sums of the sinks' gradient, f64 [chunks, heads].
constexpr int kSinkChunkRows = 128;
inline int64_t sink_bytes(int64_t rows, int64_t heads) {
  return base::ceil_div(rows, kSinkChunkRows) * heads * 8;
}

// ---- cuDNN

// What is small whatever the shape: descriptors, counters, padding of short sequences.
constexpr int64_t kCudnnSmallBytes = 16 << 20;

inline int64_t cudnn_forward_bytes(const CudnnCase&) { return kCudnnSmallBytes; }

// Of documents, as 9.14 asks: dq, dk and dv in f32, and where query heads share keys, twice as many of each head as
// share one, seen over shapes (tests/cuda/attention_workspace_test.cpp).
inline int64_t cudnn_documents_bytes(const CudnnCase& c) {
  const AttentionShape& s = c.shape;
  const int64_t width = base::round_up(std::max(s.head_dim, s.v_head_dim), 64), shared = s.heads / s.kv_heads;
  const int64_t numbers = shared == 1 ? 3 * s.heads : (5 + 2 * shared) * s.heads + 2 * s.kv_heads;
  return 4 * s.rows * (numbers * width + s.heads) + 512 * c.max_documents + kCudnnSmallBytes;
}

inline int64_t cudnn_backward_bytes(const CudnnCase& c) {
  if (c.max_documents > 0) return cudnn_documents_bytes(c);
  const AttentionShape& s = c.shape;
  const auto width = [](int64_t d) { return base::round_up(d, 64); };
  const int64_t rows = base::ceil_div(s.rows, c.seq_len) * base::round_up(c.seq_len, 128) * s.heads;
  const Part part = part_of(c);
  const int64_t sums =
      c.deterministic ? part.sequences * part.kv_heads * least_score_bytes(s.heads, s.kv_heads, c.seq_len)
                      : 4 * rows * width(s.head_dim);
  const int64_t of_query_heads =
      s.heads == s.kv_heads ? 0 : 2 * rows * (width(s.head_dim) + width(s.v_head_dim));
  return sums + 4 * rows + of_query_heads + kCudnnSmallBytes;
}

// The log-sum-exp in cuDNN's order.
inline int64_t transposed_lse_bytes(const AttentionShape& shape) {
  return scratch_part(shape.rows * shape.heads * 4);
}

// ---- Either: the list of documents first, where there is one.

inline int64_t forward_scratch_bytes(const CudnnCase& c, tensor::Dtype dtype) {
  if (!why_own(c, dtype).empty()) return 0;
  return (c.max_documents > 0 ? document_list_bytes(c.max_documents) : 0) + cudnn_forward_bytes(c);
}

inline int64_t backward_scratch_bytes(const CudnnCase& c, tensor::Dtype dtype) {
  const int64_t own = own_backward_bytes(c.shape, dtype);
  if (!why_own(c, dtype).empty()) return own;
  if (c.max_documents > 0)
    return document_list_bytes(c.max_documents) + std::max(own, cudnn_backward_bytes(c));
  return std::max(own, transposed_lse_bytes(c.shape) + cudnn_backward_bytes(c));
}

}  // namespace pleat::kernels::attention
