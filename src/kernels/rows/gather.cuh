// Rows fetched by index: take_rows and the embedding. Any element type: rows are runs of units of 1 to 16
// bytes.
#pragma once

#include "device/cuda/check.h"
#include "kernels/cuda/team.cuh"
#include "kernels/cuda/types.cuh"

namespace pleat::kernels::cuda {

// What a row of the result is. An index that is out of bounds, which the CPU kernels throw at, gives bytes of
// all ones: NaN in every float type, so that the loss and the gradient norm are not finite and nothing is
// committed.
constexpr int64_t kZeroRow = -1, kBadRow = -2;

template <class F>
bool with_unit(int64_t bytes, F&& f) {  // f(zero of the unit type)
  switch (bytes) {
    case 16:
      return f(uint4{}), true;
    case 8:
      return f(uint64_t{}), true;
    case 4:
      return f(uint32_t{}), true;
    case 2:
      return f(uint16_t{}), true;
    case 1:
      return f(uint8_t{}), true;
    default:
      return false;
  }
}

// The largest unit that divides all sizes and addresses.
inline int64_t common_unit(std::initializer_list<int64_t> bytes,
                           std::initializer_list<const void*> addresses) {
  for (int64_t unit = 16; unit > 1; unit /= 2) {
    bool fits = all_aligned(addresses, static_cast<uintptr_t>(unit));
    for (int64_t b : bytes) fits = fits && b % unit == 0;
    if (fits) return unit;
  }
  return 1;
}

template <class U>
__device__ inline U ones() {
  if constexpr (sizeof(U) == 16)
    return make_uint4(~0u, ~0u, ~0u, ~0u);
  else
    return static_cast<U>(~U{});
}

constexpr int kGatherThreads = 256, kGatherAhead = 4;

// One warp takes kGatherAhead * 32 units of a row. Source: `int64_t of(row)` names the source row, kZeroRow,
// or kBadRow; `int64_t rows()` how many rows are written (known on the device only). What is written leaves
// the caches first: source rows that come again stay in them.
template <class U, class Source>
__global__ void __launch_bounds__(kGatherThreads)
    gather(const U* x, U* y, int64_t max_rows, int64_t units, uint32_t chunks, Source source) {
  constexpr int kUnits = kGatherAhead * 32;
  const int64_t warp = (blockIdx.x * static_cast<int64_t>(kGatherThreads) + threadIdx.x) / 32;
  const int64_t row = warp / chunks;
  if (row >= max_rows || row >= source.rows()) return;
  const int64_t first = (warp - row * chunks) * kUnits + threadIdx.x % 32, from = source.of(row);
  const U fill = from == kBadRow ? ones<U>() : U{};
  U held[kGatherAhead];
#pragma unroll
  for (int i = 0; i < kGatherAhead; ++i) {
    const int64_t unit = first + i * 32;
    held[i] = from >= 0 && unit < units ? x[from * units + unit] : fill;
  }
#pragma unroll
  for (int i = 0; i < kGatherAhead; ++i) {
    const int64_t unit = first + i * 32;
    if (unit < units) __stcs(y + row * units + unit, held[i]);
  }
}

// Rows of less than a warp's chunk: one thread per unit.
template <class U, class Source>
__global__ void __launch_bounds__(kGatherThreads)
    gather_short(const U* x, U* y, int64_t max_rows, uint32_t units, Source source) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(kGatherThreads) + threadIdx.x, row = i / units;
  if (row >= max_rows || row >= source.rows()) return;
  const int64_t from = source.of(row);
  y[i] = from >= 0 ? x[from * units + (i - row * units)] : from == kBadRow ? ones<U>() : U{};
}

// Enqueues y[row] = x[source.of(row)]; row_bytes is a multiple of `unit`.
template <class Source>
void launch_gather(CUstream_st* stream, const void* x, void* y, int64_t rows, int64_t row_bytes, int64_t unit,
                   Source source) {
  if (rows == 0 || row_bytes == 0) return;
  const int64_t units = row_bytes / unit, chunk = kGatherAhead * 32;
  with_unit(unit, [&](auto zero) {
    using U = decltype(zero);
    const auto* from = static_cast<const U*>(x);
    auto* to = static_cast<U*>(y);
    if (units >= chunk) {
      const int64_t chunks = ceil_div(units, chunk);
      gather<U, Source><<<static_cast<unsigned>(ceil_div(rows * chunks * 32, kGatherThreads)), kGatherThreads,
                          0, stream>>>(from, to, rows, units, static_cast<uint32_t>(chunks), source);
    } else {
      gather_short<U, Source>
          <<<static_cast<unsigned>(ceil_div(rows * units, kGatherThreads)), kGatherThreads, 0, stream>>>(
              from, to, rows, static_cast<uint32_t>(units), source);
    }
    PLEAT_CUDA_LAUNCHED();
  });
}

}  // namespace pleat::kernels::cuda
