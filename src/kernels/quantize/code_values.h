// The values of all codes of E4M3, for loops that decode.
#pragma once

#include <array>
#include <cstdint>

#include "tensor/few_bits.h"

namespace pleat::kernels {

inline constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> out{};
  for (uint32_t c = 0; c < 256; ++c) out[c] = static_cast<float>(tensor::E4M3::value(c));
  return out;
}();

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
