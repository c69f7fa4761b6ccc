// A third ceiling beside those of device/cuda/cuda.h: products of codes of 8 bits.
#pragma once

namespace pleat::device::cuda {

// FLOP/s of one large product of E4M3 codes with one scale for each operand, into bf16, as fast as the library does it
// (its sums may keep fewer bits than those of products by blocks). 0: the library has none.
double measure_codes_rate();

}  // namespace pleat::device::cuda
