// Tokens sorted by row of the table over the whole device: for more of them than a cluster holds.
#pragma once

#include <cub/device/device_radix_sort.cuh>

#include "device/cuda/check.h"
#include "kernels/embedding/embedding_scratch.h"
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

// In scratch.
struct DeviceSort {
  int32_t *keys = nullptr, *order = nullptr;
  uint8_t* used = nullptr;
  void* library = nullptr;
  size_t library_bytes = 0;
};

inline cudaError_t radix_sort(void* temporary, size_t& bytes, const int32_t* keys, const int32_t* order,
                              const SortedTokens& sorted, int key_bits, CUstream_st* stream) {
  return cub::DeviceRadixSort::SortPairs(temporary, bytes, keys, sorted.keys, order, sorted.order,
                                         sorted.num_tokens, 0, key_bits, stream);
}

inline DeviceSort plan_device_sort(const TokenRows& tokens, const EmbeddingScratch& parts,
                                   std::byte* scratch) {
  DeviceSort p;
  p.keys = reinterpret_cast<int32_t*>(scratch + parts.keys);
  p.order = reinterpret_cast<int32_t*>(scratch + parts.order);
  p.used = reinterpret_cast<uint8_t*>(scratch + parts.used);
  p.library = scratch + parts.library;
  const SortedTokens none{nullptr, nullptr, static_cast<int>(tokens.num_tokens), 0};
  PLEAT_CUDA(radix_sort(nullptr, p.library_bytes, nullptr, nullptr, none, tokens.key_bits(), nullptr));
  const int64_t planned = EmbeddingScratch::most_of_library(tokens.num_tokens);
  if (static_cast<int64_t>(p.library_bytes) > planned)
    base::fail_with(base::ExitCode::Hardware,
                    "CUB asks for {} bytes to sort {} tokens where {} were planned "
                    "(kernels/embedding/embedding_scratch.h)",
                    p.library_bytes, tokens.num_tokens, planned);
  return p;
}

// `zero`: the rows of the table that no token uses become zero.
inline void launch_device_sort(CUstream_st* stream, const DeviceSort& p, const TokenRows& tokens,
                               const SortedTokens& sorted, const TableBytes& table, bool zero) {
  PLEAT_CUDA(cudaMemsetAsync(p.used, 0, static_cast<size_t>(tokens.table_rows), stream));
  make_keys<<<static_cast<unsigned>(ceil_div(tokens.num_tokens, kKeyThreads)), kKeyThreads, 0, stream>>>(
      tokens, p.keys, p.order, p.used);
  PLEAT_CUDA_LAUNCHED();
  if (zero) {
    zero_unused<<<static_cast<unsigned>(tokens.table_rows), kZeroThreads, 0, stream>>>(p.used, table);
    PLEAT_CUDA_LAUNCHED();
  }
  size_t bytes = p.library_bytes;
  PLEAT_CUDA(radix_sort(p.library, bytes, p.keys, p.order, sorted, tokens.key_bits(), stream));
}

}  // namespace pleat::kernels::cuda
