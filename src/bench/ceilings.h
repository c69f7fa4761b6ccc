// What figures of a device are shown against.
#pragma once

namespace pleat::bench {

// Rates measured on the device at hand; 0: not known.
struct Ceilings {
  double copy = 0, gemm = 0;  // bytes/s, FLOP/s
  double codes = 0;           // FLOP/s of products of codes of 8 bits
};

}  // namespace pleat::bench
