// How a file offers its kernels: each table of tables.def is one function that gives its rows. A missing row is an
// error when a program is bound, not when the stage is reached.
#pragma once

#include <optional>

#include "kernels/contract.h"
#include "kernels/stage_of.h"

namespace pleat::kernels {

struct Binding {
  program::KernelKind kind;
  program::Phase phase;
  Resolve resolve;
};

// select_float<KernelFor>(dtype): KernelFor<float>::run or KernelFor<double>::run. No type, no kernel. Static: g++ gives
// functions over templates of unnamed namespaces one name in all files, and the linker would keep one of them.
template <template <class> class KernelFor>
static Kernel select_float(std::optional<tensor::Dtype> dtype) {
  if (dtype == tensor::Dtype::F32) return &KernelFor<float>::run;
  if (dtype == tensor::Dtype::F64) return &KernelFor<double>::run;
  return nullptr;
}

// The type two arguments must share to be taken.
inline std::optional<tensor::Dtype> common_type(const Arg& a, const Arg& b) {
  return a.dtype == b.dtype ? std::optional(a.dtype) : std::nullopt;
}

// Rows of a table. The arguments are those of a phase, as `signature` names them.
template <template <class> class Args>
constexpr Binding row(Resolve resolve) {
  return {StageOf<Args>::kind, StageOf<Args>::phase, resolve};
}

// A kernel for float and double; `type_of` reads the type it runs in off the arguments.
template <template <class> class Args, template <class> class KernelFor, class TypeOf>
constexpr Binding row(TypeOf) {
  return row<Args>(
      [](const Invocation& call) { return select_float<KernelFor>(TypeOf{}(Args<Arg>(call.args))); });
}

// A kernel that takes every type the contract lets through.
template <template <class> class Args, Kernel kernel>
constexpr Binding row() {
  return row<Args>([](const Invocation&) { return kernel; });
}

// One function per table.
#define PLEAT_TABLE(name) std::span<const Binding> name##_bindings();
#define PLEAT_CPU_TABLE(name) PLEAT_TABLE(name)
#include "kernels/tables.def"

}  // namespace pleat::kernels
