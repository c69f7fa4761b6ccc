// One step of attention over a ring of ranks: contract of kernel `ring_attention` (program/ops.def) and its
// CPU entry points. Each rank of a context group holds some rows of the microbatch; the keys and values of
// one rank after the other come by, and every step adds what its queries see of them.
//
// Formulas, visibility, limits and types are attention's (attention.h), counted in rows of the whole
// microbatch, T of them. Shapes: qkv [Tq, (H + G) d + G dv], of which only the q columns are read; kv, dkv
// [Tk, G (d + dv)], each row k heads | v heads; row i32[Tq] and the keys' rows i32[Tk] (0 <= row < T,
// anything else stops the process); doc_start i32[T]; out, dout, prior_out [Tq, H dv]; lse, prior_lse [Tq,
// H]; dq [Tq, H d].
//
// Forward. (out, lse) of a set of keys is all that later keys need to know of it: it counts as one key with
// logit lse and value out. So step s goes on from the (out, lse) of the steps before. The first step has
// none; every query must see a key in it (its own), and the sinks enter there and only there. A query that
// sees none of a step's keys keeps out and lse bit by bit: what is not visible is left out by its place,
// never by a decision that depends on numbers. Programs keep the out of all steps but the last in the wide
// type (f32 where the compute type is bf16); on the CPU all are the compute type.
//
// Backward. With the last step's out and lse, p = exp(score - lse) needs no other step: dq (+)= the part of
// these keys, dkv = the part of these queries, zero where none of them looks.
//
// Order of sums: keys of the first step, of the second, and so on: part of the program, the same at any
// timing, but another order than attention's. Bits depend neither on the number of threads nor on the
// neighbours in the microbatch.
#pragma once

#include "kernels/attention/context_attention.h"

namespace pleat::kernels {

// shape.rows is T. sinks may be nullptr; prior_out and prior_lse are both given or both nullptr.
template <class T>
void ring_attention_forward(const AttentionShape& shape, const ContextRows& queries, const ContextRows& keys,
                            const T* qkv, const T* kv, const int32_t* doc_start, const T* sinks,
                            const T* prior_out, const T* prior_lse, T* out, T* lse, device::Pool& pool);

// `into` is dq's; dkv is overwritten.
template <class T>
void ring_attention_backward(const AttentionShape& shape, const ContextRows& queries, const ContextRows& keys,
                             const T* dout, const T* qkv, const T* kv, const T* out, const T* lse,
                             const int32_t* doc_start, Into into, T* dq, T* dkv, device::Pool& pool);

// Bound in attention_cpu.cpp.
Kernel resolve_ring_forward(const Invocation& call);
Kernel resolve_ring_backward(const Invocation& call);

}  // namespace pleat::kernels
