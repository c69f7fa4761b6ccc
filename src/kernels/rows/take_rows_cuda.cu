// Rows picked by index on the GPU. Overwriting moves bytes; accumulating adds in the element type (floats:
// once rounded).
#include "kernels/cuda/bind.h"
#include "kernels/rows/gather.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

struct Picked {
  const int32_t *index, *limit;  // limit: the last of the offsets, or null
  int64_t num_from, max_rows;
  __device__ int64_t rows() const { return limit ? static_cast<int64_t>(*limit) : max_rows; }
  __device__ int64_t of(int64_t row) const {
    const int32_t from = index[row];
    return from == -1 ? kZeroRow : from < -1 || from >= num_from ? kBadRow : from;
  }
};

template <class T>
__device__ inline T plus(T a, T b) {
  if constexpr (sizeof(T) == 2)
    return from_float<T>(to_float(a) + to_float(b));
  else
    return static_cast<T>(a + b);
}

template <class T, int N>
__global__ void __launch_bounds__(kGatherThreads)
    gather_add(const T* x, T* y, int64_t max_rows, int64_t width, Picked source) {
  const int64_t i = (blockIdx.x * static_cast<int64_t>(kGatherThreads) + threadIdx.x) * N, row = i / width;
  if (row >= max_rows || row >= source.rows()) return;
  const int64_t from = source.of(row);
  if (from == kZeroRow) return;
  auto to = Vec<T, N>::load(y + i);
  if (from == kBadRow) {
    memset(&to, 0xff, sizeof to);
  } else {
    const auto add = Vec<T, N>::load(x + from * width + (i - row * width));
#pragma unroll
    for (int j = 0; j < N; ++j) to.at[j] = plus(to.at[j], add.at[j]);
  }
  to.store(y + i);
}

template <class T>
CudaLaunch launch_add(const Arg& from, const Arg& to, int64_t width, const Picked& picked,
                      device::cuda::Lane& lane) {
  const auto* x = static_cast<const T*>(from.data);
  auto* y = static_cast<T*>(to.data);
  const int64_t rows = to.dim(0);
  const bool wide = width % kWide<T> == 0 && all_aligned({x, y});
  return [=, stream = lane.stream()] {
    const int64_t blocks = ceil_div(rows * width, kGatherThreads * (wide ? kWide<T> : 1));
    if (blocks == 0) return;
    if (wide)
      gather_add<T, kWide<T>>
          <<<static_cast<unsigned>(blocks), kGatherThreads, 0, stream>>>(x, y, rows, width, picked);
    else
      gather_add<T, 1>
          <<<static_cast<unsigned>(blocks), kGatherThreads, 0, stream>>>(x, y, rows, width, picked);
    PLEAT_CUDA_LAUNCHED();
  };
}

CudaLaunch prepare(const Arg& x, const Arg& index, const Arg& offsets, const Arg& y,
                   device::cuda::Lane& lane) {
  const int64_t rows = y.dim(0), width = x.shape.size() == 2 ? x.dim(1) : 1;
  const Picked picked{index.as<int32_t>(),
                      offsets.present ? offsets.as<int32_t>() + offsets.dim(0) - 1 : nullptr, x.dim(0), rows};
  if (y.into() == Into::Overwrite) {
    const int64_t bytes = width * tensor::size_of(x.dtype);
    return [=, from = static_cast<const void*>(x.data), to = y.data,
            unit = common_unit({bytes}, {x.data, y.data}),
            stream = lane.stream()] { launch_gather(stream, from, to, rows, bytes, unit, picked); };
  }
  switch (x.dtype) {
    case tensor::Dtype::U8:
      return launch_add<uint8_t>(x, y, width, picked, lane);
    case tensor::Dtype::I32:
      return launch_add<int32_t>(x, y, width, picked, lane);
    case tensor::Dtype::I64:
      return launch_add<int64_t>(x, y, width, picked, lane);
    case tensor::Dtype::F32:
      return launch_add<float>(x, y, width, picked, lane);
    case tensor::Dtype::F64:
      return launch_add<double>(x, y, width, picked, lane);
    case tensor::Dtype::BF16:
      return launch_add<bf16>(x, y, width, picked, lane);
    case tensor::Dtype::I16:
    case tensor::Dtype::E4M3:
    case tensor::Dtype::E8M0:
    case tensor::Dtype::E2M1:
      break;
  }
  return {};
}

CudaLaunch prepare_take_rows_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::take_rows::Forward<Arg> args(call.args);
  return prepare(args.x, args.index, args.offsets, args.y, lane);
}

CudaLaunch prepare_take_rows_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  const signature::take_rows::BackwardInput<Arg> args(call.args);
  return prepare(args.x, args.index, args.offsets, args.y, lane);
}

constexpr CudaBinding kTable[] = {
    row<signature::take_rows::Forward>(prepare_take_rows_forward),
    row<signature::take_rows::BackwardInput>(prepare_take_rows_backward_input),
};

}  // namespace

std::span<const CudaBinding> take_rows_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
