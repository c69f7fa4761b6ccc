// Tokens sorted by row of the table over the whole device: for more of them than a cluster holds.
#pragma once

#include <cub/device/device_radix_sort.cuh>

#include "device/cuda/check.h"
#include "kernels/embedding/token_rows.cuh"

namespace pleat::kernels::cuda {

constexpr int kKeyThreads = 256, kZeroThreads = 128;

static __global__ void make_keys(TokenRows tokens, int32_t* keys, int32_t* order, uint8_t* used) {
  const int64_t t = blockIdx.x * static_cast<int64_t>(kKeyThreads) + threadIdx.x;
  if (t >= tokens.num_tokens) return;
  const int key = tokens.key(t);
  keys[t] = key;
  order[t] = static_cast<int32_t>(t);
  if (key < tokens.table_rows) used[key] = 1;
}

// blockIdx.x is a row.
static __global__ void __launch_bounds__(kZeroThreads) zero_unused(const uint8_t* used, TableBytes table) {
  if (!used[blockIdx.x]) table.zero_row(blockIdx.x, static_cast<int>(threadIdx.x), kZeroThreads);
}

// Where the parts of the scratch begin.
struct DeviceSort {
  int64_t keys, order, used, temporary, total;
  size_t temporary_bytes;
};

inline cudaError_t radix_sort(void* temporary, size_t& bytes, const int32_t* keys, const int32_t* order,
                              const SortedTokens& sorted, int key_bits, CUstream_st* stream) {
  return cub::DeviceRadixSort::SortPairs(temporary, bytes, keys, sorted.keys, order, sorted.order,
                                         sorted.num_tokens, 0, key_bits, stream);
}

inline DeviceSort plan_device_sort(const TokenRows& tokens) {
  DeviceSort p{};
  const auto take = [&](int64_t bytes) {
    const int64_t at = p.total;
    p.total += (bytes + 255) / 256 * 256;
    return at;
  };
  p.keys = take(4 * tokens.num_tokens), p.order = take(4 * tokens.num_tokens);
  p.used = take(tokens.table_rows);
  const SortedTokens none{nullptr, nullptr, static_cast<int>(tokens.num_tokens), 0};
  PLEAT_CUDA(radix_sort(nullptr, p.temporary_bytes, nullptr, nullptr, none, tokens.key_bits(), nullptr));
  p.temporary = take(static_cast<int64_t>(p.temporary_bytes));
  return p;
}

// `zero`: the rows of the table that no token uses become zero.
inline void launch_device_sort(CUstream_st* stream, const DeviceSort& p, std::byte* scratch,
                               const TokenRows& tokens, const SortedTokens& sorted, const TableBytes& table,
                               bool zero) {
  auto *keys = reinterpret_cast<int32_t*>(scratch + p.keys),
       *order = reinterpret_cast<int32_t*>(scratch + p.order);
  auto* used = reinterpret_cast<uint8_t*>(scratch + p.used);
  PLEAT_CUDA(cudaMemsetAsync(used, 0, static_cast<size_t>(tokens.table_rows), stream));
  make_keys<<<static_cast<unsigned>(ceil_div(tokens.num_tokens, kKeyThreads)), kKeyThreads, 0, stream>>>(
      tokens, keys, order, used);
  PLEAT_CUDA_LAUNCHED();
  if (zero) {
    zero_unused<<<static_cast<unsigned>(tokens.table_rows), kZeroThreads, 0, stream>>>(used, table);
    PLEAT_CUDA_LAUNCHED();
  }
  size_t bytes = p.temporary_bytes;
  PLEAT_CUDA(radix_sort(scratch + p.temporary, bytes, keys, order, sorted, tokens.key_bits(), stream));
}

}  // namespace pleat::kernels::cuda
