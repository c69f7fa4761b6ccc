// What figures of a device are shown against.
#pragma once

namespace pleat::bench {

// Rates measured on the device at hand; 0: not known.
struct Ceilings {
  double copy = 0, gemm = 0;  // bytes/s, FLOP/s
};

}  // namespace pleat::bench
