#include "base/error.h"
#include "device/cuda/check.h"
#include "kernels/cuda/tensor_map.cuh"

namespace pleat::kernels::cuda {
namespace {

// Taken from the driver at run time, so that the program starts on machines that have none.
auto encoder() {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    PLEAT_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                                &result));
    if (result != cudaDriverEntryPointSuccess || !found)
      base::fail_with(base::ExitCode::Hardware,
                      "the driver has no cuTensorMapEncodeTiled: CUDA 12 or later is needed");
    return reinterpret_cast<Encode>(found);
  }();
  return encode;
}

}  // namespace

CUtensorMap tensor_map(const void* data, const MapShape& s) {
  CUtensorMap out{};
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(s.x), static_cast<cuuint64_t>(s.y),
                               static_cast<cuuint64_t>(s.z)};
  const int64_t width = tensor::size_of(s.dtype);
  const int64_t y = s.stride_y > 0 ? s.stride_y : s.x, z = s.stride_z > 0 ? s.stride_z : y * s.y;
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(y * width), static_cast<cuuint64_t>(z * width)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(s.box_x), static_cast<cuuint32_t>(s.box_y), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult code = encoder()(&out,
                                  s.dtype == tensor::Dtype::BF16   ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                  : s.dtype == tensor::Dtype::E4M3 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                                                   : CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                                  s.three ? 3 : 2, const_cast<void*>(data), sizes, strides, box, steps,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  s.swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS)
    base::fail_with(base::ExitCode::Internal,
                    "a tensor of {} x {} x {} (box {} x {}) cannot be described: error {}", s.z, s.y, s.x,
                    s.box_y, s.box_x, static_cast<int>(code));
  return out;
}

}  // namespace pleat::kernels::cuda
