// grouped_linear on the GPU: choice of tile, launches. The products are in grouped_gemm.cuh.
#include "kernels/cuda/paths.h"
#include "kernels/grouped_linear/grouped_bias.cuh"
#include "kernels/grouped_linear/grouped_gemm.cuh"
#include "kernels/grouped_linear/grouped_launch.cuh"
#include "kernels/grouped_linear/grouped_linear.h"

namespace pleat::kernels {
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
  return launch_pairs(&grouped_gemm<kWhat, kN, T>, WideForm<kWhat, kN>::shared_bytes(shape.num_groups),
                      fmt::format("[grouped_linear] tiles, and the offsets of {} experts", shape.num_groups),
                      lane, ma, mb, mo, shape);
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

GroupedShape shape_of(const Arg& offsets, int64_t m, int64_t n, int64_t k) {
  GroupedShape s{};
  s.offsets = offsets.as<int32_t>();
  s.num_groups = static_cast<int>(offsets.dim(0) - 1);
  s.m = static_cast<int>(m), s.n = static_cast<int>(n), s.k = static_cast<int>(k);
  return s;
}

// Scales of rows are f32.
bool takes(const Arg& row_scale) { return !row_scale.present || row_scale.dtype == tensor::Dtype::F32; }

CudaLaunch prepare_forward(const Invocation& call, Lane& lane) {
  const signature::grouped_linear::Forward<Arg> args(call.args);
  if (!takes(args.row_scale)) return {};
  const int64_t out = args.w.dim(1), in = args.w.dim(2);
  CudaLaunch product;
  if (noted("forward", args.w, args.x, args.y, suits_tensor_cores({&args.x, &args.w, &args.y}, {in, out}))) {
    GroupedShape shape = shape_of(args.offsets, 0, out, in);
    shape.out = args.y.as<bf16>();
    product = launch<Grouped::Rows>(args.x, args.w, args.y, shape, lane);
  } else {
    product = plain_grouped_forward(args.x, args.w, args.offsets, args.y, lane);
  }
  if (!args.bias.present) return product;
  return in_order(std::move(product), add_group_bias(args.y, args.bias, args.row_scale, args.offsets, lane));
}

CudaLaunch prepare_dgrad(const Invocation& call, Lane& lane) {
  const signature::grouped_linear::BackwardInput<Arg> args(call.args);
  if (!takes(args.drow_scale)) return {};
  const int64_t out = args.w.dim(1), in = args.w.dim(2);
  CudaLaunch product;
  if (noted("dgrad", args.w, args.dy, args.dx,
            suits_tensor_cores({&args.dy, &args.w, &args.dx}, {in, out}))) {
    GroupedShape shape = shape_of(args.offsets, 0, in, out);
    shape.out = args.dx.as<bf16>();
    product = launch<Grouped::RowsAcross>(args.dy, args.w, args.dx, shape, lane);
  } else {
    product = plain_grouped_dgrad(args.dy, args.w, args.offsets, args.dx, lane);
  }
  if (!args.drow_scale.present) return product;
  return in_order(std::move(product),
                  group_bias_dot(args.dy, args.bias, args.drow_scale, args.offsets, lane));
}

CudaLaunch prepare_wgrad(const Invocation& call, Lane& lane) {
  const signature::grouped_linear::BackwardWeight<Arg> args(call.args);
  if (!takes(args.row_scale)) return {};
  const int64_t out = args.dw.dim(1), in = args.dw.dim(2);
  const bool wide = args.dw.dtype == tensor::Dtype::F32;
  CudaLaunch product;
  const bool suits = args.x.dim(0) > 0 && suits_tensor_cores({&args.dy, &args.x}, {in, out}) &&
                     reinterpret_cast<uintptr_t>(args.dw.data) % 16 == 0;
  if (noted("wgrad", args.dw, args.x, args.dw, suits)) {
    GroupedShape shape = shape_of(args.offsets, out, in, 0);
    shape.accumulate = args.dw.into() == Into::Accumulate;
    product = wide ? launch<Grouped::Depth, float>(args.dy, args.x, args.dw, shape, lane)
                   : launch<Grouped::Depth>(args.dy, args.x, args.dw, shape, lane);
  } else {
    product = plain_grouped_wgrad(args.dy, args.x, args.offsets, args.dw, lane);
  }
  if (!args.dbias.present) return product;
  return in_order(std::move(product),
                  group_bias_sum(args.dy, args.row_scale, args.dbias, args.offsets, lane));
}

constexpr CudaBinding kTable[] = {
    row<signature::grouped_linear::Forward>(prepare_forward),
    row<signature::grouped_linear::BackwardInput>(prepare_dgrad),
    row<signature::grouped_linear::BackwardWeight>(prepare_wgrad),
};

}  // namespace

std::span<const CudaBinding> grouped_linear_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
