// Moves between thread ranks on one GPU, on a stream of their own: a kernel's work on other streams must be
// done before a rank posts its buffers, as the executor sees to.
#include <cuda_bf16.h>

#include <algorithm>
#include <type_traits>

#include "comm/local/local_world.h"
#include "comm/local/mover.h"
#include "device/cuda/check.h"
#include "device/cuda/cuda.h"

namespace pleat::comm::local {
namespace {

constexpr int kMaxRanks = kMaxGpuRanks, kThreads = 256;

struct Ranks {
  const std::byte* in[kMaxRanks];
  std::byte* out[kMaxRanks];
  int num_ins, num_outs;
};

// As comm/reduce.cpp: the type a sum is carried in.
template <class T>
struct Carry {
  using Type = std::make_unsigned_t<T>;
};
template <>
struct Carry<__nv_bfloat16> {
  using Type = float;
};
template <>
struct Carry<float> {
  using Type = double;
};
template <>
struct Carry<double> {
  using Type = double;
};

template <class T>
__device__ T larger(T a, T b) {
  return b > a || b != b ? b : a;
}
template <class T>
__device__ T smaller(T a, T b) {
  return b < a || b != b ? b : a;
}

// One thread per element reads it from all ranks before it writes any: an out may be one of the ins.
template <class T>
__global__ void __launch_bounds__(kThreads) reduce_ranks(const Ranks ranks, int64_t count, Reduce reduce) {
  using C = typename Carry<T>::Type;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const auto at = [&](int r) { return reinterpret_cast<const T*>(ranks.in[r])[i]; };
    T result = at(0);
    if (reduce == Reduce::Sum) {
      C sum = static_cast<C>(result);
      for (int r = 1; r < ranks.num_ins; ++r) sum += static_cast<C>(at(r));
      result = static_cast<T>(sum);
    } else {
      for (int r = 1; r < ranks.num_ins; ++r) {
        if (result != result) break;
        result = reduce == Reduce::Max ? larger(result, at(r)) : smaller(result, at(r));
      }
    }
    for (int r = 0; r < ranks.num_outs; ++r) reinterpret_cast<T*>(ranks.out[r])[i] = result;
  }
}

class DeviceMover final : public Mover {
 public:
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override { lane_.copy(to, from, bytes); }

  void reduce(std::span<const std::byte* const> ins, std::span<std::byte* const> outs, int64_t count,
              tensor::Dtype dtype, Reduce reduce) override {
    if (ins.size() > kMaxRanks || outs.size() > kMaxRanks)
      base::fail("{} ranks reduce on one GPU; up to {} can", std::max(ins.size(), outs.size()), kMaxRanks);
    if (count == 0) return;
    Ranks ranks{};
    std::copy(ins.begin(), ins.end(), ranks.in);
    std::copy(outs.begin(), outs.end(), ranks.out);
    ranks.num_ins = static_cast<int>(ins.size());
    ranks.num_outs = static_cast<int>(outs.size());
    switch (dtype) {
      case tensor::Dtype::F32:
        return launch<float>(ranks, count, reduce);
      case tensor::Dtype::F64:
        return launch<double>(ranks, count, reduce);
      case tensor::Dtype::BF16:
        return launch<__nv_bfloat16>(ranks, count, reduce);
      case tensor::Dtype::I32:
        return launch<int32_t>(ranks, count, reduce);
      case tensor::Dtype::I64:
        return launch<int64_t>(ranks, count, reduce);
      case tensor::Dtype::U8:
      case tensor::Dtype::I16:
      case tensor::Dtype::E4M3:
      case tensor::Dtype::E8M0:
      case tensor::Dtype::E2M1:
        break;
    }
    PLEAT_CHECK(false, "{} cannot be reduced", tensor::name_of(dtype));
  }

  void finish() override { lane_.synchronize(); }

 private:
  template <class T>
  void launch(const Ranks& ranks, int64_t count, Reduce reduce) {
    const int64_t blocks = std::min<int64_t>((count + kThreads - 1) / kThreads, 1024);
    reduce_ranks<T><<<static_cast<unsigned>(blocks), kThreads, 0, lane_.stream()>>>(ranks, count, reduce);
    PLEAT_CUDA_LAUNCHED();
  }

  device::cuda::Lane lane_;
};

}  // namespace

std::unique_ptr<Mover> device_mover() { return std::make_unique<DeviceMover>(); }

}  // namespace pleat::comm::local
