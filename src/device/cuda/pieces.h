// Copies between the device and host memory that was locked in pieces (cuda.h, Pinned): the driver takes none that crosses
// from one to the next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/cuda/cuda.h"

namespace pleat::device::cuda {

// Calls copy(to, from, bytes) for the parts of a copy that lie in one piece each, whichever side is the host's.
template <class Copy>
void for_each_piece(std::byte* to, const std::byte* from, int64_t bytes, Copy&& copy) {
  const auto left = [](const std::byte* at) {
    return kPinnedPiece - static_cast<int64_t>(reinterpret_cast<uintptr_t>(at) % kPinnedPiece);
  };
  while (bytes > 0) {
    const int64_t count = std::min({bytes, left(to), left(from)});
    copy(to, from, count);
    to += count, from += count, bytes -= count;
  }
}

}  // namespace pleat::device::cuda
