// How a kernels folder offers its kernels: each folder defines one row function, and registry_cpu.cpp lists
// the rows. A missing row is an error when a program is bound, not when the stage is reached.
#pragma once

#include "kernels/contract.h"

namespace pleat::kernels {

struct Binding {
  program::KernelKind kind;
  program::Phase phase;
  Resolve resolve;
};

// select_float<KernelFor>(dtype): KernelFor<float>::run or KernelFor<double>::run.
template <template <class> class KernelFor>
Kernel select_float(tensor::Dtype dtype) {
  switch (dtype) {
    case tensor::Dtype::F32:
      return &KernelFor<float>::run;
    case tensor::Dtype::F64:
      return &KernelFor<double>::run;
    default:
      return nullptr;
  }
}

// One function per folder.
std::span<const Binding> embedding_bindings();
std::span<const Binding> linear_bindings();
std::span<const Binding> rmsnorm_bindings();
std::span<const Binding> rope_bindings();
std::span<const Binding> mla_bindings();
std::span<const Binding> attention_bindings();
std::span<const Binding> cached_attention_bindings();
std::span<const Binding> mla_decode_bindings();
std::span<const Binding> swiglu_bindings();
std::span<const Binding> sigmoid_gate_bindings();
std::span<const Binding> router_bindings();
std::span<const Binding> dispatch_bindings();
std::span<const Binding> grouped_linear_bindings();
std::span<const Binding> rows_bindings();
std::span<const Binding> cross_entropy_bindings();
std::span<const Binding> mtp_bindings();
std::span<const Binding> token_score_bindings();
std::span<const Binding> optimizer_bindings();
std::span<const Binding> shares_bindings();

}  // namespace pleat::kernels
