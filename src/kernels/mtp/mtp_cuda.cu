// Inputs of multi-token prediction on the GPU. One block: a microbatch has some ten thousand rows of 14
// bytes.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/math/require.h"

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
  const signature::mtp_shift::Forward args(call.args);
  require_rank(args.tokens, 1);
  const int64_t rows = args.tokens.dim(0), depth = call.integer("depth"), seq_len = call.integer("seq_len");
  if (depth < 1) base::fail("[mtp_shift] depth is {}, needed 1 or more", depth);
  if (seq_len < 1 || rows % seq_len != 0)
    base::fail("[mtp_shift] {} rows are not whole sequences of {}", rows, seq_len);
  static constexpr const char* names[] = {"tokens",    "labels", "loss_mask",    "valid",
                                          "doc_start", "ahead",  "ahead_labels", "mask"};
  for (size_t i = 0; i < 8; ++i) {
    require_shape("mtp_shift", names[i], call[i], {rows});
    const bool flag = i == 2 || i == 3 || i == 7;
    require_dtype("mtp_shift", names[i], call[i], flag ? tensor::Dtype::U8 : tensor::Dtype::I32);
  }
  require_shape(args.count, {1});
  require_type(args.count, tensor::Dtype::I64);
  const ShiftArgs p{args.tokens.as<int32_t>(),
                    args.labels.as<int32_t>(),
                    args.loss_mask.as<uint8_t>(),
                    args.valid.as<uint8_t>(),
                    args.doc_start.as<int32_t>(),
                    args.ahead.as<int32_t>(),
                    args.ahead_labels.as<int32_t>(),
                    args.mask.as<uint8_t>(),
                    args.count.as<int64_t>(),
                    rows,
                    depth,
                    seq_len,
                    args.count.into() == Into::Accumulate};
  return [p, stream = lane.stream()] {
    shift<<<1, kThreads, 0, stream>>>(p);
    PLEAT_CUDA_LAUNCHED();
  };
}

CudaLaunch prepare_weight(const Invocation& call, device::cuda::Lane& lane) {
  const signature::mtp_weight::Forward args(call.args);
  require_shape(args.count, {1});
  require_type(args.count, tensor::Dtype::I64);
  require_shape(args.norm, {1});
  require_type(args.norm, tensor::Dtype::F64);
  const double weight = call.attr("weight");
  if (!(weight > 0)) base::fail("[mtp_weight] weight is {}, needed more than 0", weight);
  return [weight, count = args.count.as<int64_t>(), norm = args.norm.as<double>(), stream = lane.stream()] {
    weigh<<<1, 1, 0, stream>>>(count, weight, norm);
    PLEAT_CUDA_LAUNCHED();
  };
}

}  // namespace

std::span<const CudaBinding> mtp_cuda_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr CudaBinding rows[] = {
      {KernelKind::mtp_shift, Phase::Forward, prepare_shift},
      {KernelKind::mtp_weight, Phase::Forward, prepare_weight},
  };
  return rows;
}

}  // namespace pleat::kernels
