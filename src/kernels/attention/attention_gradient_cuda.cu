#include "kernels/attention/attention_gradient.h"

#include "device/cuda/check.h"
#include "kernels/attention/attention_gradient.cuh"
#include "kernels/attention/attention_widths.h"
#include "kernels/cuda/tensor_map.cuh"

namespace pleat::kernels::attention {
namespace {

CUtensorMap map_of(const void* data, int width, int64_t rows, int64_t row, int heads) {
  cuda::MapShape shape{width, rows, heads, 64, 64, true};
  shape.stride_y = row, shape.stride_z = width;
  return cuda::tensor_map(data, shape);
}

template <Side kSide, int D, int DV>
auto prepared() {
  const auto kernel = &gradient<kSide, D, DV>;
  PLEAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  GradientTiles<D, DV>::kBytes));
  return kernel;
}

template <int D, int DV>
CudaLaunch prepare(const OwnArguments& a, std::span<std::byte> scratch, device::cuda::Lane& lane) {
  const GradientMaps maps{map_of(a.q, a.d, a.num_queries, a.q_row, a.heads),
                          map_of(a.k, a.d, a.num_keys, a.kv_row, a.kv_heads),
                          map_of(a.v, a.dv, a.num_keys, a.kv_row, a.kv_heads),
                          map_of(a.dout, a.dv, a.num_queries, a.out_row, a.heads)};
  const auto of_queries = prepared<Side::Queries, D, DV>();
  const auto of_keys = prepared<Side::Keys, D, DV>();
  const auto blocks = static_cast<unsigned>(cuda::ceil_div(a.num_queries, kHeldRows));
  const dim3 query_grid(blocks, static_cast<unsigned>(a.heads)),
      key_grid(blocks, static_cast<unsigned>(a.kv_heads));
  const int64_t rows = cuda::ceil_div(a.num_queries, kStreamRows) * kStreamRows, sums = rows * a.heads;
  const auto number_blocks = static_cast<unsigned>(cuda::ceil_div(sums, kNumbersThreads / 32));
  std::byte* const numbers = scratch_for(scratch, query_number_bytes(a.num_queries, a.heads));
  const QueryNumbers queries{rows, reinterpret_cast<float2*>(numbers),
                             reinterpret_cast<int*>(numbers + sums * static_cast<int64_t>(sizeof(float2)))};
  return [=, stream = lane.stream()] {
    constexpr int kBytes = GradientTiles<D, DV>::kBytes;
    make_query_numbers<<<number_blocks, kNumbersThreads, 0, stream>>>(a, queries);
    PLEAT_CUDA_LAUNCHED();
    of_queries<<<query_grid, kGradientThreads, kBytes, stream>>>(maps, a, queries);
    PLEAT_CUDA_LAUNCHED();
    of_keys<<<key_grid, kGradientThreads, kBytes, stream>>>(maps, a, queries);
    PLEAT_CUDA_LAUNCHED();
  };
}

}  // namespace

bool suits_hopper_gradients(const OwnArguments& a, tensor::Dtype dtype) {
  if (dtype != tensor::Dtype::BF16 || a.query_row || a.num_queries == 0 || a.d > 192 || a.dv > 128)
    return false;
  for (const int64_t elements :
       {int64_t{a.d}, int64_t{a.dv}, a.q_row, a.kv_row, a.out_row, a.dq_row, a.dkv_row})
    if (elements % 8 != 0) return false;
  for (const void* at : {a.q, a.k, a.v, a.dout, static_cast<const void*>(a.dq),
                         static_cast<const void*>(a.dk), static_cast<const void*>(a.dv_to)})
    if (reinterpret_cast<uintptr_t>(at) % 16 != 0) return false;
  return true;
}

CudaLaunch hopper_gradients(const OwnArguments& a, std::span<std::byte> scratch, device::cuda::Lane& lane) {
  if (a.d <= 64 && a.dv <= 64) return prepare<64, 64>(a, scratch, lane);
  if (a.d <= 128) return prepare<128, 128>(a, scratch, lane);
  return prepare<192, 128>(a, scratch, lane);
}

}  // namespace pleat::kernels::attention
