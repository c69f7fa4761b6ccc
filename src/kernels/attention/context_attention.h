// Attention of some rows of a microbatch against all of them: contract of kernel `context_attention`
// (program/ops.def) and its CPU entry points. Each rank of a context group calls it with its own queries.
//
// Formulas, visibility, sinks, limits and types are attention's (attention.h), counted in rows of the whole
// microbatch, T of them. Shapes: qkv [Tq, (H + G) d + G dv], of which only the q columns are read; kv, dkv
// [T, G (d + dv)], each row k heads | v heads; row i32[Tq], the row of each query (0 <= row < T, anything
// else stops the process); doc_start i32[T]; out, dout [Tq, H dv]; lse [Tq, H]; dq [Tq, H d].
//
// Queries may come in any order. Those that follow one another in the microbatch and here share a block, so a
// few long runs (the two chunks of a load-balanced split) cost what attention costs, scattered rows much
// more.
//
// Backward overwrites dq and all of dkv: the sum over these queries, zero where none of them looks. Summed
// over the ranks of a group, dkv is attention's dk and dv.
//
// Bits. They depend neither on the number of threads nor on the neighbours in the microbatch. Blocks of keys
// are those of attention, so out, lse and dq of a row equal attention's, whatever other rows are computed
// with it. dkv sums its queries in the order of their runs here.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/bind.h"

namespace pleat::kernels {

// The rows of the queries.
struct ContextRows {
  const int32_t* row = nullptr;
  int64_t count = 0;  // Tq
};

// shape.rows is T. sinks may be nullptr.
template <class T>
void context_attention_forward(const AttentionShape& shape, const ContextRows& queries, const T* qkv,
                               const T* kv, const int32_t* doc_start, const T* sinks, T* out, T* lse,
                               device::Pool& pool);

template <class T>
void context_attention_backward(const AttentionShape& shape, const ContextRows& queries, const T* dout,
                                const T* qkv, const T* kv, const T* out, const T* lse,
                                const int32_t* doc_start, T* dq, T* dkv, device::Pool& pool);

// Bound in attention_cpu.cpp.
Kernel resolve_context_forward(const Invocation& call);
Kernel resolve_context_backward(const Invocation& call);

}  // namespace pleat::kernels
