// The project's own attention on the GPU: any head width up to kMaxHeadDim, any doc_start, windows, sinks,
// bf16 and f32, queries at any rows of the microbatch. Interface between the files of this folder.
//
// Flash-style: a block of 64 (or 32) query rows against blocks of key rows, scores only in a tile. Backward
// is two kernels without atomics: one owns dq, one owns dk and dv, each sums in ascending order. bf16 is
// multiplied by tensor cores, f32 in plain float.
#pragma once

#include "kernels/attention/attention_scratch.h"
#include "kernels/attention/documents.h"
#include "kernels/cuda/bind.h"

namespace pleat::kernels::attention {

// Rows are `_row` elements apart; the pointers are at head 0 of row 0.
struct OwnArguments {
  int num_queries = 0, num_keys = 0;  // rows
  int heads = 0, kv_heads = 0, d = 0, dv = 0;
  int window = 0;
  float scale = 1;
  int64_t q_row = 0, kv_row = 0, out_row = 0;
  int64_t dq_row = 0, dkv_row = 0;
  const int32_t* query_row = nullptr;  // row of each query in the microbatch; nullptr: query i is row i
  const int32_t* doc_start = nullptr;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  const void *out = nullptr, *dout = nullptr, *sinks = nullptr;
  void* out_to = nullptr;
  float* lse = nullptr;  // [num_queries, heads]
  void *dq = nullptr, *dk = nullptr, *dv_to = nullptr;
  // Of a list of documents (documents.h): the kernels do nothing when all rows are listed. nullptr: there is
  // none.
  const int32_t* listed = nullptr;
};

// `dtype` is bf16 or f32 and holds for all void pointers.
CudaLaunch own_forward(const OwnArguments& arguments, tensor::Dtype dtype, device::cuda::Lane& lane);
// The scratch is its own while it runs (attention_scratch.h).
CudaLaunch own_backward(const OwnArguments& arguments, tensor::Dtype dtype, std::span<std::byte> scratch,
                        device::cuda::Lane& lane);

// to[b, h, i] = lse[b seq_len + i, h].
CudaLaunch transpose_lse(const float* lse, float* to, int64_t rows, int heads, int64_t seq_len,
                         device::cuda::Lane& lane);

// Turns a result without sinks into one with: out *= 1 / (1 + exp(sink - lse)), lse = log(exp(lse) +
// exp(sink)).
CudaLaunch apply_sinks(const AttentionShape& shape, const void* sinks, void* out, float* lse,
                       tensor::Dtype dtype, device::cuda::Lane& lane);

// attention_backward_sinks of attention.h. dsinks may have another type.
CudaLaunch sinks_backward(const AttentionShape& shape, const void* dout, const void* out, const float* lse,
                          const void* sinks, tensor::Dtype dtype, const Arg& dsinks,
                          std::span<std::byte> scratch, device::cuda::Lane& lane);

}  // namespace pleat::kernels::attention
