// How a file offers its CUDA kernels, beside the CPU ones (kernels/bind.h).
//
// A CUDA kernel is *prepared* once, when a program is bound and its arguments fit the contract
// (kernels/contract.h): it picks tiles, algorithms and library plans, and takes what it needs of the call's
// scratch. What it returns is called once per step: it only enqueues work on the lane's stream. It never
// allocates, never waits for the device, never reads device memory on the host; so a step can be captured as a
// graph.
//
// Same contracts as the CPU kernels, which are the specification. Types: activations, weights and their
// gradients with respect to activations bf16 or f32 (the compute type); rstd, lse, cos_sin f32; router
// logits and probabilities f32; weight gradients f32 or bf16; moments f32 or bf16; the rest as
// program/ops.def says. Arithmetic is in f32 (bf16 is for storage and matrix operands), results are rounded
// once. No float atomics: the same launch gives the same bits.
#pragma once

#include <functional>
#include <span>

#include "device/cuda/cuda.h"
#include "kernels/invocation.h"
#include "kernels/stage_of.h"

namespace pleat::kernels {

using CudaLaunch = std::function<void()>;
// The lane outlives the launch. An empty function: no kernel for these types. Throws base::Error where rows
// are more than a launch takes.
using CudaPrepare = CudaLaunch (*)(const Invocation&, device::cuda::Lane&);

struct CudaBinding {
  program::KernelKind kind;
  program::Phase phase;
  CudaPrepare prepare;
};

// A row of a table: the arguments are those of a phase, as `signature` names them.
template <template <class> class Args>
constexpr CudaBinding row(CudaPrepare prepare) {
  return {StageOf<Args>::kind, StageOf<Args>::phase, prepare};
}

// The CUDA kernel of (kind, phase), or nullptr.
CudaPrepare find_cuda_kernel(program::KernelKind kind, program::Phase phase);

// One function per table that has a GPU file.
#define PLEAT_TABLE(name) std::span<const CudaBinding> name##_cuda_bindings();
#include "kernels/tables.def"

}  // namespace pleat::kernels
