// grouped_linear on the GPU: checks, choice of tile, launches. The products are in grouped_gemm.cuh.
#include <vector>

#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/paths.h"
#include "kernels/cuda/shared_limit.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/grouped_linear/grouped_bias.cuh"
#include "kernels/grouped_linear/grouped_gemm.cuh"
#include "kernels/grouped_linear/grouped_linear.h"
#include "kernels/math/require.h"

namespace pleat::kernels {

std::span<const CudaBinding> expert_swiglu_cuda_rows();

namespace {

using namespace cuda;
using device::cuda::Lane;

constexpr std::string_view kName = "grouped_linear";

bool suits_tensor_cores(std::initializer_list<const Arg*> operands, std::initializer_list<int64_t> widths) {
  for (const Arg* a : operands)
    if (a->dtype != tensor::Dtype::BF16 || reinterpret_cast<uintptr_t>(a->data) % 16 != 0) return false;
  for (int64_t w : widths)
    if (w % 8 != 0) return false;
  return true;
}

// Which way a product goes, said once; `into` is what it writes.
bool noted(std::string_view phase, const Arg& w, const Arg& x, const Arg& into, bool tensor_cores) {
  note_path(fmt::format("{} {}: {} experts of {} x {}, {}->{}, sums in f32: {}", kName, phase, w.dim(0),
                        w.dim(1), w.dim(2), tensor::name_of(x.dtype), tensor::name_of(into.dtype),
                        tensor_cores ? "own kernel on tensor cores" : "own kernel, multiply-adds"));
  return tensor_cores;
}

template <Grouped kWhat, int kN, class T>
CudaLaunch launch_tiles(const Arg& a, const Arg& b, const Arg& out, GroupedShape shape, Lane& lane) {
  const int64_t rows = a.dim(0);
  const MapShape map_a{a.dim(1), rows, 1, 64, 64, false};
  MapShape map_b, map_out;
  if constexpr (kWhat == Grouped::Depth) {
    map_b = {b.dim(1), rows, 1, 64, 64, false};
    map_out = {shape.n, shape.m, shape.num_groups, 128 / static_cast<int>(sizeof(T)), 64, true, out.dtype};
  } else {
    map_b = {b.dim(2), b.dim(1), b.dim(0), 64, kWhat == Grouped::Rows ? kN / 2 : 64, true};
    map_out = {shape.n, rows, 1, 64, 64, false};
  }
  const CUtensorMap ma = tensor_map(a.data, map_a), mb = tensor_map(b.data, map_b),
                    mo = tensor_map(out.data, map_out);
  const int shared = grouped_shared_bytes<kN>(shape.num_groups);
  const auto kernel = &grouped_gemm<kWhat, kN, T>;
  allow_shared(reinterpret_cast<const void*>(kernel), shared,
               fmt::format("[grouped_linear] tiles, and the offsets of {} experts", shape.num_groups));
  const int sms = device::cuda::facts().num_sms;
  return [=, stream = lane.stream()] {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(sms / 2 * 2));
    config.blockDim = dim3(384);
    config.dynamicSmemBytes = static_cast<size_t>(shared);
    config.stream = stream;
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = 2, cluster.val.clusterDim.y = 1, cluster.val.clusterDim.z = 1;
    config.attrs = &cluster;
    config.numAttrs = 1;
    PLEAT_CUDA(cudaLaunchKernelEx(&config, kernel, ma, mb, mo, shape));
  };
}

template <Grouped kWhat, class T = bf16>
CudaLaunch launch(const Arg& a, const Arg& b, const Arg& out, const GroupedShape& shape, Lane& lane) {
  if (a.dim(0) == 0 && kWhat != Grouped::Depth) return [] {};
  if (shape.n <= 128) return launch_tiles<kWhat, 128, T>(a, b, out, shape, lane);
  return launch_tiles<kWhat, 256, T>(a, b, out, shape, lane);
}

CudaLaunch in_order(CudaLaunch first, CudaLaunch second) {
  if (!first || !second) return {};
  return [first = std::move(first), second = std::move(second)] {
    first();
    second();
  };
}

void require_offsets(const Arg& offsets, int64_t num_groups) {
  require_dtype(kName, "offsets", offsets, tensor::Dtype::I32);
  require_shape(kName, "offsets", offsets, {num_groups + 1});
}

GroupedShape shape_of(const Arg& offsets, int64_t m, int64_t n, int64_t k) {
  GroupedShape s{};
  s.offsets = offsets.as<int32_t>();
  s.num_groups = static_cast<int>(offsets.dim(0) - 1);
  s.m = static_cast<int>(m), s.n = static_cast<int>(n), s.k = static_cast<int>(k);
  return s;
}

// x w offsets bias? row_scale? -> y
CudaLaunch prepare_forward(const Invocation& call, Lane& lane) {
  const signature::grouped_linear::Forward args(call.args);
  const Arg &x = args.x, &w = args.w, &offsets = args.offsets, &bias = args.bias, &scale = args.row_scale,
            &y = args.y;
  require_rank(kName, "w", w, 3);
  require_rank(kName, "x", x, 2);
  const int64_t E = w.dim(0), out = w.dim(1), in = w.dim(2), rows = x.dim(0);
  require_shape(kName, "x", x, {rows, in});
  require_shape(kName, "y", y, {rows, out});
  require_shape(kName, "bias", bias, {E, out});
  require_shape(kName, "row_scale", scale, {rows});
  require_offsets(offsets, E);
  require_dtype(kName, "x", x, w.dtype);
  require_dtype(kName, "y", y, w.dtype);
  require_dtype(kName, "bias", bias, w.dtype);
  require_dtype(kName, "row_scale", scale, tensor::Dtype::F32);
  CudaLaunch product;
  if (noted("forward", w, x, y, suits_tensor_cores({&x, &w, &y}, {in, out}))) {
    GroupedShape shape = shape_of(offsets, 0, out, in);
    shape.out = y.as<bf16>();
    product = launch<Grouped::Rows>(x, w, y, shape, lane);
  } else {
    product = plain_grouped_forward(x, w, offsets, y, lane);
  }
  return bias.present ? in_order(std::move(product), add_group_bias(y, bias, scale, offsets, lane)) : product;
}

// dy w offsets bias? -> dx drow_scale+?
CudaLaunch prepare_dgrad(const Invocation& call, Lane& lane) {
  const signature::grouped_linear::BackwardInput args(call.args);
  const Arg &dy = args.dy, &w = args.w, &offsets = args.offsets, &bias = args.bias, &dx = args.dx,
            &dscale = args.drow_scale;
  require_rank(kName, "w", w, 3);
  require_rank(kName, "dy", dy, 2);
  const int64_t E = w.dim(0), out = w.dim(1), in = w.dim(2), rows = dy.dim(0);
  require_shape(kName, "dy", dy, {rows, out});
  require_shape(kName, "dx", dx, {rows, in});
  require_shape(kName, "bias", bias, {E, out});
  require_shape(kName, "drow_scale", dscale, {rows});
  require_offsets(offsets, E);
  require_dtype(kName, "dy", dy, w.dtype);
  require_dtype(kName, "dx", dx, w.dtype);
  require_dtype(kName, "bias", bias, w.dtype);
  require_dtype(kName, "drow_scale", dscale, tensor::Dtype::F32);
  CudaLaunch product;
  if (noted("dgrad", w, dy, dx, suits_tensor_cores({&dy, &w, &dx}, {in, out}))) {
    GroupedShape shape = shape_of(offsets, 0, in, out);
    shape.out = dx.as<bf16>();
    product = launch<Grouped::RowsAcross>(dy, w, dx, shape, lane);
  } else {
    product = plain_grouped_dgrad(dy, w, offsets, dx, lane);
  }
  return dscale.present ? in_order(std::move(product), group_bias_dot(dy, bias, dscale, offsets, lane))
                        : product;
}

// dy x offsets row_scale? -> dw+ dbias+?
CudaLaunch prepare_wgrad(const Invocation& call, Lane& lane) {
  const signature::grouped_linear::BackwardWeight args(call.args);
  const Arg &dy = args.dy, &x = args.x, &offsets = args.offsets, &scale = args.row_scale, &dw = args.dw,
            &dbias = args.dbias;
  require_rank(kName, "dw", dw, 3);
  require_rank(kName, "x", x, 2);
  const int64_t E = dw.dim(0), out = dw.dim(1), in = dw.dim(2), rows = x.dim(0);
  require_shape(kName, "dy", dy, {rows, out});
  require_shape(kName, "x", x, {rows, in});
  require_shape(kName, "row_scale", scale, {rows});
  require_shape(kName, "dbias", dbias, {E, out});
  require_offsets(offsets, E);
  require_dtype(kName, "dy", dy, x.dtype);
  require_dtype(kName, "row_scale", scale, tensor::Dtype::F32);
  const bool wide = dw.dtype == tensor::Dtype::F32;
  CudaLaunch product;
  const bool suits =
      rows > 0 && suits_tensor_cores({&dy, &x}, {in, out}) && reinterpret_cast<uintptr_t>(dw.data) % 16 == 0;
  if (noted("wgrad", dw, x, dw, suits)) {
    GroupedShape shape = shape_of(offsets, out, in, 0);
    shape.accumulate = dw.into() == Into::Accumulate;
    product = wide ? launch<Grouped::Depth, float>(dy, x, dw, shape, lane)
                   : launch<Grouped::Depth>(dy, x, dw, shape, lane);
  } else {
    product = plain_grouped_wgrad(dy, x, offsets, dw, lane);
  }
  return dbias.present ? in_order(std::move(product), group_bias_sum(dy, scale, dbias, offsets, lane))
                       : product;
}

}  // namespace

std::span<const CudaBinding> grouped_linear_cuda_bindings() {
  using program::KernelKind;
  using program::Phase;
  static const std::vector<CudaBinding> rows = [] {
    std::vector<CudaBinding> out = {
        {KernelKind::grouped_linear, Phase::Forward, prepare_forward},
        {KernelKind::grouped_linear, Phase::BackwardInput, prepare_dgrad},
        {KernelKind::grouped_linear, Phase::BackwardWeight, prepare_wgrad},
    };
    for (const CudaBinding& row : expert_swiglu_cuda_rows()) out.push_back(row);
    return out;
  }();
  return rows;
}

}  // namespace pleat::kernels
