// What contracts of routing share (router, dispatch, grouped_linear): the numbers of experts, the router type
// beside the compute type, and the offsets of experts in routed rows.
#pragma once

#include <limits>

#include "kernels/contract.h"
#include "program/limits.h"

namespace pleat::kernels {

using program::kMaxExperts;

// Logits and probabilities are never narrower than the model: the wide type of its compute type, or f64
// beside f32.
inline void require_router_type(const Arg& router, const Arg& compute) {
  using tensor::Dtype;
  if (!router.present || router.dtype == wide_of(compute.dtype)) return;
  if (compute.dtype != Dtype::F32 || router.dtype != Dtype::F64)
    refuse(router,
           "argument '{}': compute type {} with router type {} is not supported; needed f32/f32, f32/f64, "
           "f64/f64 or bf16/f32",
           router.name, tensor::name_of(compute.dtype), tensor::name_of(router.dtype));
}

inline void require_experts(const Arg& of, int64_t experts) {
  if (experts < 1 || experts > kMaxExperts) refuse(of, "{} experts, needed 1 to {}", experts, kMaxExperts);
}

inline void require_top_k(const Arg& of, int64_t top_k, int64_t experts) {
  if (top_k < 1 || top_k > experts) refuse(of, "top_k is {}, needed 1 to {} (the experts)", top_k, experts);
}

// offsets i32[E+1]
inline void require_offsets(const Arg& offsets) {
  require_rank(offsets, 1);
  require_type(offsets, tensor::Dtype::I32);
  if (offsets.dim(0) < 2)
    refuse(offsets, "argument '{}' is [{}], needed one more than the experts", offsets.name, offsets.dim(0));
}

// Choices and rows are counted in i32.
inline void require_index_range(const Arg& of, int64_t choices, int64_t rows) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (choices > kMost || rows > kMost)
    refuse(of, "{} choices and {} rows do not fit in 32 bits", choices, rows);
}

}  // namespace pleat::kernels
