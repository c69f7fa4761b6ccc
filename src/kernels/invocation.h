// What a kernel gets: its arguments, its static attributes and the device.
//
// A kernel names its arguments as program/ops.def does (program/signature.h):
//   const signature::rmsnorm::Forward<Arg> args(call.args);   // args.x, args.w, args.y, args.rstd
// It never allocates, never waits, never keeps a pointer. Memory it needs beside its arguments is given with
// them: call.scratch, as much as its contract states (kernels/contract.h), with nothing in it. It is called
// once per step per stage, with the same addresses every time.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "device/cpu/pool.h"
#include "program/signature.h"

namespace pleat::kernels {

namespace signature = program::signature;

// Overwrite: what was there does not matter (it may be NaN). Accumulate: add to it.
enum class Into : uint8_t { Overwrite, Accumulate };

struct Arg {
  void* data = nullptr;  // nullptr: optional argument that is absent, or a value without elements
  tensor::Dtype dtype = tensor::Dtype::F32;
  std::span<const int64_t> shape;
  program::Access access = program::Access::Read;
  bool present = false;
  std::string_view kernel = {}, name = {};  // as in ops.def; for errors (name_arguments)

  int64_t dim(size_t i) const { return shape[i]; }
  int64_t size() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
  Into into() const { return access == program::Access::Update ? Into::Accumulate : Into::Overwrite; }
  template <class T>
  T* as() const {
    if (!present) return nullptr;
    PLEAT_CHECK(dtype == tensor::DtypeOf<T>::value, "argument is {}", tensor::name_of(dtype));
    return static_cast<T*>(data);
  }
};

// The beginning of `scratch`, of which a kernel is about to use `bytes`.
inline std::byte* scratch_for(std::span<std::byte> scratch, int64_t bytes) {
  if (bytes > static_cast<int64_t>(scratch.size()))
    base::fail_with(base::ExitCode::Internal, "{} bytes of scratch are needed, {} were given", bytes,
                    scratch.size());
  return scratch.data();
}

// The windows of a group's ranks (program::Space::Window), in group order: all laid out alike, so what lies at an address
// of this rank's lies as far from the beginning of another's.
struct Windows {
  std::span<std::byte* const> begin;
  int own = 0;  // this rank's place in the group

  int size() const { return static_cast<int>(begin.size()); }
  template <class T>
  T* of(int rank, const Arg& arg) const {
    return arg.data
               ? reinterpret_cast<T*>(begin[static_cast<size_t>(rank)] +
                                      (static_cast<std::byte*>(arg.data) - begin[static_cast<size_t>(own)]))
               : nullptr;
  }
};

struct Invocation {
  std::span<const Arg> args;
  const program::AttrSet* attrs = nullptr;
  device::Pool* pool = nullptr;
  std::span<std::byte> scratch = {};  // begins at a multiple of 256 bytes
  Windows windows = {};               // of kernels that write them: those of the stage's group

  double attr(std::string_view key) const {
    for (const program::Attr& a : *attrs)
      if (a.key == key) return a.number;
    base::fail_with(base::ExitCode::Internal, "stage attribute '{}' is missing", key);
  }
  int64_t integer(std::string_view key) const { return static_cast<int64_t>(attr(key)); }
  std::byte* scratch_for(int64_t bytes) const { return kernels::scratch_for(scratch, bytes); }
};

// Gives the arguments of a call their names.
void name_arguments(std::span<Arg> args, program::KernelKind kind, program::Phase phase);

using Kernel = void (*)(const Invocation&);

// Picks the kernel for the types and shapes of an invocation that fits the contract (kernels/contract.h), when
// the program is bound; nullptr: no kernel for these types.
using Resolve = Kernel (*)(const Invocation&);

// The CPU kernel of (kind, phase), or nullptr.
Resolve find_cpu_kernel(program::KernelKind kind, program::Phase phase);

}  // namespace pleat::kernels
