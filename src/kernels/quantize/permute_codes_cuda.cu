// Codes of tokens to rows of experts on the GPU: a row's codes are fetched as numbers are (rows/gather.cuh), its scales
// and its probability by a kernel of their own.
#include "kernels/contract.h"
#include "kernels/cuda/bind.h"
#include "kernels/rows/gather.cuh"
#include "tensor/recipe.h"

namespace pleat::kernels {
namespace {

using namespace cuda;
using device::cuda::Lane;

struct RowTokens {
  const int32_t *row_token, *num_rows;
  int64_t num_tokens;

  __device__ int64_t rows() const { return *num_rows; }
  __device__ int64_t of(int64_t row) const {
    const int32_t token = row_token[row];
    return token < 0 ? kZeroRow : token < num_tokens ? token : kBadRow;
  }
};

struct ScalesOf {
  const float* scale;
  float* rows_scale;
  int64_t rows;
  int blocks, top_k;
  const float* probs;  // null: no row_probs
  const int32_t* row_slot;
  float* row_probs;
};

// One thread for each scale. A row of a token that is not there has NaN, as its codes do.
__global__ void __launch_bounds__(kGatherThreads) gather_scales(const ScalesOf a, const RowTokens tokens) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(kGatherThreads) + threadIdx.x, row = i / a.blocks;
  if (row >= a.rows || row >= tokens.rows()) return;
  const int64_t block = i - row * a.blocks, from = tokens.of(row);
  const float bad = __int_as_float(0x7fffffff);
  a.rows_scale[i] = from >= 0 ? a.scale[from * a.blocks + block] : from == kZeroRow ? 1.0f : bad;
  if (block == 0 && a.row_probs)
    a.row_probs[row] = from >= 0 ? a.probs[from * a.top_k + a.row_slot[row]] : from == kZeroRow ? 0.0f : bad;
}

template <class Args>
CudaLaunch launch(const Args& args, ScalesOf scales, const Invocation& call, Lane& lane) {
  if (call.integer("recipe") != static_cast<int64_t>(tensor::RecipeId::Fp8)) return {};
  const RowTokens tokens{args.row_token.template as<int32_t>(),
                         args.offsets.template as<int32_t>() + args.offsets.dim(0) - 1, args.codes.dim(0)};
  scales.scale = args.scale.template as<float>(), scales.rows_scale = args.rows_scale.template as<float>();
  scales.rows = args.rows.dim(0), scales.blocks = static_cast<int>(args.scale.dim(1));
  const int64_t width = args.codes.dim(1), unit = common_unit({width}, {args.codes.data, args.rows.data});
  return [=, from = args.codes.data, to = args.rows.data, stream = lane.stream()] {
    if (scales.rows == 0 || width == 0) return;
    launch_gather(stream, from, to, scales.rows, width, unit, tokens);
    gather_scales<<<static_cast<unsigned>(ceil_div(scales.rows * scales.blocks, kGatherThreads)),
                    kGatherThreads, 0, stream>>>(scales, tokens);
    PLEAT_CUDA_LAUNCHED();
  };
}

CudaLaunch prepare_permute(const Invocation& call, Lane& lane) {
  const signature::permute_codes::Forward<Arg> args(call.args);
  if (args.probs.dtype != tensor::Dtype::F32) return {};
  ScalesOf scales{};
  scales.probs = args.probs.as<float>(), scales.top_k = static_cast<int>(args.probs.dim(1));
  scales.row_slot = args.row_slot.as<int32_t>(), scales.row_probs = args.row_probs.as<float>();
  return launch(args, scales, call, lane);
}

CudaLaunch prepare_combine(const Invocation& call, Lane& lane) {
  return launch(signature::permute_codes::BackwardInput<Arg>(call.args), {}, call, lane);
}

constexpr CudaBinding kTable[] = {
    row<signature::permute_codes::Forward>(prepare_permute),
    row<signature::permute_codes::BackwardInput>(prepare_combine),
};

}  // namespace

std::span<const CudaBinding> permute_codes_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
