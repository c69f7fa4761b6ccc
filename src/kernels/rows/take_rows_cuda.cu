// Rows picked by index on the GPU. Overwriting moves bytes; accumulating adds in the element type (floats:
// once rounded).
#include "kernels/math/require.h"
#include "kernels/rows/gather.cuh"
#include "kernels/rows/rows_cuda.h"

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
CudaLaunch launch_add(const Invocation& call, int64_t width, const Picked& picked, device::cuda::Lane& lane) {
  const signature::take_rows::BackwardInput args(call.args);
  const auto* x = static_cast<const T*>(args.x.data);
  auto* y = static_cast<T*>(args.y.data);
  const int64_t rows = args.y.dim(0);
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

}  // namespace

CudaLaunch prepare_take_rows(const Invocation& call, device::cuda::Lane& lane) {
  const signature::take_rows::BackwardInput args(call.args);
  if (args.x.shape.size() != 1) require_rank(args.x, 2);
  require_rank(args.y, args.x.shape.size());
  if (args.x.shape.size() == 2) require_shape(args.y, {args.y.dim(0), args.x.dim(1)});
  require_type(args.y, args.x.dtype);
  require_type(args.index, tensor::Dtype::I32);
  require_shape(args.index, {args.y.dim(0)});
  require_type(args.offsets, tensor::Dtype::I32);
  require_rank(args.offsets, 1);
  if (args.offsets.present && args.offsets.dim(0) < 1)
    base::fail("[take_rows] argument 'offsets' is empty, needed 1 element or more");
  const int64_t rows = args.y.dim(0), width = args.x.shape.size() == 2 ? args.x.dim(1) : 1;
  const Picked picked{args.index.as<int32_t>(),
                      args.offsets.present ? args.offsets.as<int32_t>() + args.offsets.dim(0) - 1 : nullptr,
                      args.x.dim(0), rows};
  if (args.y.into() == Into::Overwrite) {
    const int64_t bytes = width * tensor::size_of(args.x.dtype);
    return [=, x = static_cast<const void*>(args.x.data), y = args.y.data,
            unit = common_unit({bytes}, {args.x.data, args.y.data}),
            stream = lane.stream()] { launch_gather(stream, x, y, rows, bytes, unit, picked); };
  }
  switch (args.x.dtype) {
    case tensor::Dtype::U8:
      return launch_add<uint8_t>(call, width, picked, lane);
    case tensor::Dtype::I32:
      return launch_add<int32_t>(call, width, picked, lane);
    case tensor::Dtype::I64:
      return launch_add<int64_t>(call, width, picked, lane);
    case tensor::Dtype::F32:
      return launch_add<float>(call, width, picked, lane);
    case tensor::Dtype::F64:
      return launch_add<double>(call, width, picked, lane);
    case tensor::Dtype::BF16:
      return launch_add<bf16>(call, width, picked, lane);
    case tensor::Dtype::I16:
      break;
  }
  return {};
}

}  // namespace pleat::kernels
