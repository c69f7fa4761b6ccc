// Codes of recipe fp8 in loops that decode: the value of each, and where an expert's rows begin.
#pragma once

#include <cstdint>

#include "tensor/code_values.h"

namespace pleat::kernels {

using tensor::kE4m3Values;

// Where each expert's rows begin in column codes of recipe fp8: at multiples of `align`.
template <class Offsets, class Visit>
inline void for_each_expert(const Offsets* offsets, int64_t experts, int64_t align, const Visit& visit) {
  int64_t begin = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t rows = offsets[e + 1] - offsets[e];
    visit(e, begin, rows);
    begin += (rows + align - 1) / align * align;
  }
}

}  // namespace pleat::kernels
