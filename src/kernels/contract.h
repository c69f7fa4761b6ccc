// What a kernel asks of its arguments and what it costs, said once for all devices.
//
// Every row PLEAT_PHASE of program/ops.def has three functions in the file contract.h of its kernel's folder:
//
//   void check(const signature::K::P<Arg>& args, const Invocation& call);
//     Throws base::Error naming the argument, what it is and what is needed. Called once, when a program is
//     bound, before a device is asked for its kernel; a device may take fewer types, never other shapes.
//   Work work(const signature::K::P<Arg>& args, const Invocation& call);
//     Arithmetic, traffic and launches. Looks at shapes, types and attributes only; there is no data yet.
//   int64_t scratch_bytes(const signature::K::P<Arg>& args, const Invocation& call, const Gpu& gpu);
//     Memory a GPU's kernel needs beside its arguments, at most: what it is given as call.scratch. Looks at the
//     same. A kernel may find out only when it is bound how much of it it uses, and refuses less than that. CPU
//     kernels need none: what they keep between two loops fits into registers and on the stack.
//
// A row without them does not compile (contracts.cpp).
//
// Types: the compute type T is that of activations and weights (bf16, f32 or f64). Statistics, router logits
// and probabilities have the wide type of T: f64 for f64, f32 for the others.
#pragma once

#include <concepts>
#include <initializer_list>
#include <string>

#include "kernels/invocation.h"

namespace pleat::kernels {

void require_rank(const Arg& arg, size_t rank);
void require_shape(const Arg& arg, std::initializer_list<int64_t> shape);
void require_shape(const Arg& arg, std::initializer_list<int64_t> shape, tensor::Dtype dtype);
void require_type(const Arg& arg, tensor::Dtype dtype);
// bf16, f32 or f64.
void require_float(const Arg& arg);
// All that are present have one floating type.
void require_same_type(std::initializer_list<const Arg*> args);
void require_same_shape(const Arg& arg, const Arg& other);
// Same shape and type as another argument.
void require_like(const Arg& arg, const Arg& other);
// "[2, 3]", for texts of refuse.
std::string shape_text(std::span<const int64_t> shape);
// "bf16, i32, none", for the same.
std::string types_of(std::span<const Arg> args);
// "[kernel] attribute-like text": for what is no single argument's fault.
template <class... Args>
[[noreturn]] void refuse(const Arg& of, fmt::format_string<Args...> format, Args&&... args) {
  base::fail("[{}] {}", of.kernel, fmt::format(format, std::forward<Args>(args)...));
}
// The type of statistics and router numbers beside activations of this type.
constexpr tensor::Dtype wide_of(tensor::Dtype dtype) {
  return dtype == tensor::Dtype::F64 ? tensor::Dtype::F64 : tensor::Dtype::F32;
}
// Gradients and moments of parameters: f64 beside f64, else bf16 or f32.
void require_stored(const Arg& arg, const Arg& compute);

struct Work {
  double flops = 0;  // two per multiply-add of matrix products; 0 where traffic decides
  double bytes = 0;  // read and written
  int launches = 1;  // kernels, copies and fills a GPU is given
};
// Every argument read or written once; an update is both.
double moved_bytes(std::span<const Arg> args);
inline Work moves(const Invocation& call, int launches = 1) { return {0, moved_bytes(call.args), launches}; }
// Of `rows` rows times a weight, whatever the phase calls it.
inline double product_flops(int64_t rows, const Arg& w) {
  const size_t rank = w.shape.size();
  return 2.0 * static_cast<double>(rows) * static_cast<double>(w.dim(rank - 1)) *
         static_cast<double>(w.dim(rank - 2));
}
inline Work multiplies(const Invocation& call, double flops, int launches = 1) {
  return {flops, moved_bytes(call.args), launches};
}

// Rows that share a function:
//   template <AnyOf<signature::a::Forward<Arg>, signature::a::Update<Arg>> Args> void check(const Args& args, ...)
template <class Args, class... Rows>
concept AnyOf = (std::same_as<Args, Rows> || ...);

// What formulas of scratch know of a GPU: the most of any Hopper that is sold, so that a plan is the same
// wherever it is made.
struct Gpu {
  int64_t num_sms = 132, threads_per_sm = 2048;
};

// The three of any row.
void check_contract(program::KernelKind kind, program::Phase phase, const Invocation& call);
Work work_of(program::KernelKind kind, program::Phase phase, const Invocation& call);
int64_t scratch_of(program::KernelKind kind, program::Phase phase, const Invocation& call, const Gpu& gpu);
// Throws where call.scratch is smaller.
void check_scratch(program::KernelKind kind, program::Phase phase, const Invocation& call,
                   const Gpu& gpu = {});

}  // namespace pleat::kernels
