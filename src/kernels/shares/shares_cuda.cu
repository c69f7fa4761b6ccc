// Shares on the GPU: copies of elements as they are. A launch takes a few dozen tensors, whose addresses are
// among its arguments; a bucket of more is several launches.
#include <algorithm>

#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/halt.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/shares/shares_bind.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kMaxTensors = 64;
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
CudaLaunch launch(const Invocation& call, ShareTensors t, const Arg& packed, int64_t num_ranks,
                  const int64_t* place, device::cuda::Lane& lane) {
  const signature::pack_own::Update args(call.args);
  struct Part {
    Batch batch{};
    int num_tensors = 0;
    int64_t longest = 0;
  };
  std::vector<Part> parts;
  int64_t begin = 0;
  for (size_t i = t.first; i < t.end; ++i) {
    if (parts.empty() || parts.back().num_tensors == kMaxTensors) parts.emplace_back();
    Part& part = parts.back();
    const int k = part.num_tensors++;
    const int64_t n = call[i].size(), stride = program::share_stride(n, num_ranks);
    part.batch.tensor[k] = call[i].data;
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
CudaLaunch prepare(const Invocation& call, ShareTensors t, const Arg& packed, int64_t num_ranks,
                   const int64_t* place, device::cuda::Lane& lane) {
  switch (tensor::size_of(packed.dtype)) {
    case 1:
      return launch<uint8_t, kWay>(call, t, packed, num_ranks, place, lane);
    case 2:
      return launch<uint16_t, kWay>(call, t, packed, num_ranks, place, lane);
    case 4:
      return launch<uint32_t, kWay>(call, t, packed, num_ranks, place, lane);
    default:
      return launch<uint64_t, kWay>(call, t, packed, num_ranks, place, lane);
  }
}

CudaLaunch prepare_pack_shares(const Invocation& call, device::cuda::Lane& lane) {
  const signature::pack_shares::BackwardWeight args(call.args);
  const ShareTensors t = check_pack_shares(call);
  const Arg& packed = call[t.end];
  return prepare<Way::Pack>(call, t, packed, packed.dim(0), nullptr, lane);
}

CudaLaunch prepare_pack_own(const Invocation& call, device::cuda::Lane& lane) {
  const ShareTensors t = check_pack_own(call);
  return prepare<Way::Pack>(call, t, call[t.end], call.integer("ranks"),
                            call[0].as<int64_t>() + call.integer("group"), lane);
}

CudaLaunch prepare_unpack_shares(const Invocation& call, device::cuda::Lane& lane) {
  const ShareTensors t = check_unpack_shares(call);
  return prepare<Way::Unpack>(call, t, call[0], call[0].dim(0), nullptr, lane);
}

}  // namespace

std::span<const CudaBinding> shares_cuda_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr CudaBinding rows[] = {
      {KernelKind::pack_shares, Phase::BackwardWeight, prepare_pack_shares},
      {KernelKind::pack_own, Phase::Update, prepare_pack_own},
      {KernelKind::unpack_shares, Phase::Update, prepare_unpack_shares},
  };
  return rows;
}

}  // namespace pleat::kernels
