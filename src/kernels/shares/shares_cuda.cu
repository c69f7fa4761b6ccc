// Shares on the GPU: copies of elements as they are. A launch takes a few dozen tensors, whose addresses are
// among its arguments; a bucket of more is several launches.
#include <algorithm>

#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/halt.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/shares/shares.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kMaxTensors = static_cast<int>(kShareBatch);
constexpr int64_t kMaxBlocks = 256;

struct Batch {
  void* tensor[kMaxTensors];
  int64_t elements[kMaxTensors], share[kMaxTensors], stride[kMaxTensors];
  int64_t begin[kMaxTensors];  // of the share in a row
};

enum class Way : uint8_t { Pack, Unpack };

// Block (., t, r): share r of tensor t, or with `place` the share of that rank in row 0. Unpacking writes no
// padding.
template <class U, Way kWay>
__global__ void __launch_bounds__(kThreads)
    move_shares(const Batch batch, U* packed, int64_t row_elements, const int64_t* place, int64_t num_ranks) {
  const int t = static_cast<int>(blockIdx.y);
  int64_t rank = blockIdx.z;
  if (place) {
    rank = *place;
    PLEAT_HALT_UNLESS(rank >= 0 && rank < num_ranks, "pack_own: the place in the group is no rank of it");
  }
  const int64_t first = min(batch.elements[t], rank * batch.share[t]);
  const int64_t count = min(batch.share[t], batch.elements[t] - first);
  U* tensor = static_cast<U*>(batch.tensor[t]) + first;
  U* row = packed + blockIdx.z * row_elements + batch.begin[t];
  const int64_t end = kWay == Way::Pack ? batch.stride[t] : count;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < end;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    if constexpr (kWay == Way::Pack)
      row[i] = i < count ? tensor[i] : U{0};
    else
      tensor[i] = row[i];
  }
}

template <class U, Way kWay>
CudaLaunch launch(std::span<const Arg> tensors, const Arg& packed, int64_t num_ranks, const int64_t* place,
                  device::cuda::Lane& lane) {
  struct Part {
    Batch batch{};
    int num_tensors = 0;
    int64_t longest = 0;
  };
  std::vector<Part> parts;
  int64_t begin = 0;
  for (const Arg& tensor : tensors) {
    if (parts.empty() || parts.back().num_tensors == kMaxTensors) parts.emplace_back();
    Part& part = parts.back();
    const int k = part.num_tensors++;
    const int64_t n = tensor.size(), stride = program::share_stride(n, num_ranks);
    part.batch.tensor[k] = tensor.data;
    part.batch.elements[k] = n;
    part.batch.share[k] = program::share_of(n, num_ranks);
    part.batch.stride[k] = stride;
    part.batch.begin[k] = begin;
    part.longest = std::max(part.longest, stride);
    begin += stride;
  }
  const auto rows = static_cast<unsigned>(packed.dim(0));
  return [=, to = static_cast<U*>(packed.data), width = packed.dim(1), stream = lane.stream()] {
    for (const Part& part : parts) {
      if (part.longest == 0 || rows == 0) continue;
      const dim3 grid(static_cast<unsigned>(std::min(ceil_div(part.longest, kThreads), kMaxBlocks)),
                      static_cast<unsigned>(part.num_tensors), rows);
      move_shares<U, kWay><<<grid, kThreads, 0, stream>>>(part.batch, to, width, place, num_ranks);
      PLEAT_CUDA_LAUNCHED();
    }
  };
}

template <Way kWay>
CudaLaunch prepare(std::span<const Arg> tensors, const Arg& packed, int64_t num_ranks, const int64_t* place,
                   device::cuda::Lane& lane) {
  switch (tensor::size_of(packed.dtype)) {
    case 1:
      return launch<uint8_t, kWay>(tensors, packed, num_ranks, place, lane);
    case 2:
      return launch<uint16_t, kWay>(tensors, packed, num_ranks, place, lane);
    case 4:
      return launch<uint32_t, kWay>(tensors, packed, num_ranks, place, lane);
    default:
      return launch<uint64_t, kWay>(tensors, packed, num_ranks, place, lane);
  }
}

CudaLaunch prepare_pack_shares(const Invocation& call, device::cuda::Lane& lane) {
  const signature::pack_shares::BackwardWeight<Arg> args(call.args);
  return prepare<Way::Pack>(args.g, args.packed, args.packed.dim(0), nullptr, lane);
}

CudaLaunch prepare_pack_own(const Invocation& call, device::cuda::Lane& lane) {
  const signature::pack_own::Update<Arg> args(call.args);
  return prepare<Way::Pack>(args.w, args.packed, call.integer("ranks"),
                            args.coords.as<int64_t>() + call.integer("group"), lane);
}

CudaLaunch prepare_unpack_shares(const Invocation& call, device::cuda::Lane& lane) {
  const signature::unpack_shares::Update<Arg> args(call.args);
  return prepare<Way::Unpack>(args.w, args.packed, args.packed.dim(0), nullptr, lane);
}

constexpr CudaBinding kTable[] = {
    row<signature::pack_shares::BackwardWeight>(prepare_pack_shares),
    row<signature::pack_own::Update>(prepare_pack_own),
    row<signature::unpack_shares::Update>(prepare_unpack_shares),
};

}  // namespace

std::span<const CudaBinding> shares_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
