// Inputs of multi-token prediction on the GPU. One block: a microbatch has some ten thousand rows of 14
// bytes.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/types.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 1024;

struct ShiftArgs {
  const int32_t *tokens, *labels;
  const uint8_t *loss_mask, *valid;
  const int32_t* doc_start;
  int32_t *ahead, *ahead_labels;
  uint8_t* mask;
  int64_t* count;
  int64_t rows, depth, seq_len;
  bool accumulate;
};

__global__ void __launch_bounds__(kThreads) shift(ShiftArgs p) {
  int64_t counted = 0;
  for (int64_t t = threadIdx.x; t < p.rows; t += kThreads) {
    const int64_t to = t + p.depth;
    const bool inside =
        t % p.seq_len + p.depth < p.seq_len && p.doc_start[to] == p.doc_start[t] && p.valid[t] && p.valid[to];
    const bool counts = inside && p.loss_mask[to];
    p.ahead[t] = p.tokens[inside ? to : t];
    p.ahead_labels[t] = inside ? p.labels[to] : 0;
    p.mask[t] = counts;
    counted += counts;
  }
  counted = block_sum<kThreads>(counted);
  if (threadIdx.x == 0) *p.count = counted + (p.accumulate ? *p.count : 0);
}

__global__ void weigh(const int64_t* count, double weight, double* norm) {
  *norm = weight / static_cast<double>(*count > 1 ? *count : 1);
}

CudaLaunch prepare_shift(const Invocation& call, device::cuda::Lane& lane) {
  const signature::mtp_shift::Forward<Arg> args(call.args);
  const ShiftArgs p{args.tokens.as<int32_t>(),
                    args.labels.as<int32_t>(),
                    args.loss_mask.as<uint8_t>(),
                    args.valid.as<uint8_t>(),
                    args.doc_start.as<int32_t>(),
                    args.ahead.as<int32_t>(),
                    args.ahead_labels.as<int32_t>(),
                    args.mask.as<uint8_t>(),
                    args.count.as<int64_t>(),
                    args.tokens.dim(0),
                    call.integer("depth"),
                    call.integer("seq_len"),
                    args.count.into() == Into::Accumulate};
  return [p, stream = lane.stream()] {
    shift<<<1, kThreads, 0, stream>>>(p);
    PLEAT_CUDA_LAUNCHED();
  };
}

CudaLaunch prepare_weight(const Invocation& call, device::cuda::Lane& lane) {
  const signature::mtp_weight::Forward<Arg> args(call.args);
  const double weight = call.attr("weight");
  return [weight, count = args.count.as<int64_t>(), norm = args.norm.as<double>(), stream = lane.stream()] {
    weigh<<<1, 1, 0, stream>>>(count, weight, norm);
    PLEAT_CUDA_LAUNCHED();
  };
}

constexpr CudaBinding kTable[] = {
    row<signature::mtp_shift::Forward>(prepare_shift),
    row<signature::mtp_weight::Forward>(prepare_weight),
};

}  // namespace

std::span<const CudaBinding> mtp_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
