// How a kernels folder offers its kernels: each folder of folders.def defines one row function. A missing row
// is an error when a program is bound, not when the stage is reached.
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
#define PLEAT_FOLDER(name) std::span<const Binding> name##_bindings();
#define PLEAT_CPU_FOLDER(name) PLEAT_FOLDER(name)
#include "kernels/folders.def"

}  // namespace pleat::kernels
