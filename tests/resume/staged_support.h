// Runs on the CPU whose state the host reaches as it does a GPU's: through two small buffers.
#pragma once

#include "runtime/runtime.h"
#include "support/late_carrier.h"

namespace pleat::train::testing {

inline runtime::MakeCarrier late_carrier(int64_t buffer_bytes) {
  return [buffer_bytes](interpret::CudaMachine*, std::span<std::byte> memory) {
    return std::make_unique<pleat::testing::LateCarrier>(memory, buffer_bytes);
  };
}

}  // namespace pleat::train::testing
