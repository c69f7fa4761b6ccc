// Products of codes on the GPU: choice of the way, launches. The products are in scaled_gemm.cuh.
#include "kernels/cuda/paths.h"
#include "kernels/grouped_linear/grouped_launch.cuh"
#include "kernels/scaled_linear/scaled_gemm.cuh"
#include "kernels/scaled_linear/scaled_linear.h"
#include "kernels/scaled_linear/scaled_plain.cuh"
#include "tensor/recipe.h"

namespace pleat::kernels {
namespace {

using namespace cuda;
using device::cuda::Lane;
using tensor::Dtype;

bool is_fp8(const Invocation& call) {
  return call.integer("recipe") == static_cast<int64_t>(tensor::RecipeId::Fp8);
}

bool aligned(std::initializer_list<const Arg*> args) {
  for (const Arg* a : args)
    if (a && reinterpret_cast<uintptr_t>(a->data) % 16 != 0) return false;
  return true;
}

// Which way a product goes, said once.
bool noted(std::string_view what, const Arg& w, const Arg& into, bool tensor_cores) {
  const size_t rank = w.shape.size();
  note_path(fmt::format("{}: {}{} x {}, codes e4m3->{}, blocks of 128, sums in f32: {}", what,
                        rank == 3 ? fmt::format("{} experts of ", w.dim(0)) : "", w.dim(rank - 2),
                        w.dim(rank - 1), tensor::name_of(into.dtype),
                        tensor_cores ? "own kernel on tensor cores" : "own kernel, multiply-adds"));
  return tensor_cores;
}

template <Grouped kWhat, class T>
CudaLaunch launch(const CUtensorMap& a, const CUtensorMap& b, const CUtensorMap& scales_a,
                  const CUtensorMap& scales_b, const CUtensorMap& out, const GroupedShape& shape,
                  const ScaledSides& sides, Lane& lane) {
  return launch_pairs(&scaled_gemm<kWhat, T>, ScaledForm<kWhat>::shared_bytes(shape.num_groups),
                      fmt::format("[scaled_linear] tiles, and the offsets of {} experts", shape.num_groups),
                      lane, a, b, scales_a, scales_b, out, shape, sides);
}

CudaLaunch multiply_rows(std::string_view what, const ScaledRows& r, Lane& lane) {
  const size_t rank = r.w.shape.size();
  const int64_t rows = r.x.dim(0), n = r.w.dim(rank - 2), k = r.w.dim(rank - 1), across = r.x_scale.dim(1);
  const bool suits = r.y.dtype == Dtype::BF16 && k % 16 == 0 && n % 8 == 0 && n > 0 && k > 0 &&
                     aligned({&r.x, &r.w, &r.y, r.bias, r.residual}) &&
                     rows * across <= std::numeric_limits<int32_t>::max();
  if (!noted(what, r.w, r.y, suits)) return plain_scaled_rows(r, lane);
  if (rows == 0) return [] {};
  GroupedShape shape{};
  if (r.offsets) shape.offsets = r.offsets->as<int32_t>();
  shape.num_groups = r.offsets ? static_cast<int>(r.offsets->dim(0) - 1) : 1;
  shape.rows = static_cast<int>(rows), shape.n = static_cast<int>(n), shape.k = static_cast<int>(k);
  shape.out = r.y.data;
  ScaledSides sides{};
  sides.of_a = r.x_scale.as<float>(), sides.of_b = r.w_scale.as<float>();
  sides.across = static_cast<int>(across), sides.a_rows = shape.rows;
  if (r.bias) sides.bias = r.bias->as<bf16>();
  // What is added to is a residual that lies where the sum goes.
  if (r.residual) sides.residual = r.residual->as<bf16>();
  if (r.y.into() == Into::Accumulate) sides.residual = r.y.as<bf16>();
  const MapShape a{k, rows, 1, 128, 64, false, Dtype::E4M3},
      b{k, n, rank == 3 ? r.w.dim(0) : 1, 128, 128, true, Dtype::E4M3}, out{n, rows, 1, 64, 16, false};
  return launch<Grouped::Rows, bf16>(tensor_map(r.x.data, a), tensor_map(r.w.data, b), {}, {},
                                     tensor_map(r.y.data, out), shape, sides, lane);
}

CudaLaunch multiply_depth(std::string_view what, const ScaledDepth& d, Lane& lane) {
  const size_t rank = d.dw.shape.size();
  const int64_t room = d.dy.dim(0), m = d.dw.dim(rank - 2), n = d.dw.dim(rank - 1);
  const bool wide = d.dw.dtype == Dtype::F32;
  const bool suits = (wide || d.dw.dtype == Dtype::BF16) && room > 0 && room % kCodeBlock == 0 && m > 0 &&
                     n > 0 && m % 4 == 0 && n % (wide ? 4 : 8) == 0 &&
                     aligned({&d.dy, &d.dy_scale, &d.x, &d.x_scale, &d.dw});
  if (!noted(what, d.dw, d.dw, suits)) return plain_scaled_depth(d, lane);
  GroupedShape shape{};
  if (d.offsets) shape.offsets = d.offsets->as<int32_t>();
  shape.num_groups = rank == 3 ? static_cast<int>(d.dw.dim(0)) : 1;
  shape.rows = static_cast<int>(room), shape.m = static_cast<int>(m), shape.n = static_cast<int>(n);
  shape.out = d.dw.data, shape.accumulate = d.dw.into() == Into::Accumulate;
  const auto scales = [&](const Arg& of, int64_t width, int box) {
    MapShape s{width, room / kCodeBlock, 1, box, 1, false, Dtype::F32};
    s.swizzled = false;
    return tensor_map(of.data, s);
  };
  const MapShape a{room, m, 1, 128, 64, false, Dtype::E4M3}, b{room, n, 1, 128, 128, false, Dtype::E4M3},
      out{n, m, shape.num_groups, wide ? 32 : 64, 16, true, d.dw.dtype};
  const CUtensorMap ma = tensor_map(d.dy.data, a), mb = tensor_map(d.x.data, b),
                    mo = tensor_map(d.dw.data, out), sa = scales(d.dy_scale, m, 128),
                    sb = scales(d.x_scale, n, 256);
  return wide ? launch<Grouped::Depth, float>(ma, mb, sa, sb, mo, shape, {}, lane)
              : launch<Grouped::Depth, bf16>(ma, mb, sa, sb, mo, shape, {}, lane);
}

const Arg* given(const Arg& a) { return a.present ? &a : nullptr; }

CudaLaunch prepare_forward(const Invocation& call, Lane& lane) {
  const signature::scaled_linear::Forward<Arg> a(call.args);
  if (!is_fp8(call)) return {};
  return multiply_rows("scaled_linear forward",
                       {a.x, a.x_scale, a.w, a.w_scale, nullptr, given(a.bias), given(a.residual), a.y},
                       lane);
}
CudaLaunch prepare_dgrad(const Invocation& call, Lane& lane) {
  const signature::scaled_linear::BackwardInput<Arg> a(call.args);
  if (!is_fp8(call)) return {};
  return multiply_rows("scaled_linear dgrad",
                       {a.dy, a.dy_scale, a.w, a.w_scale, nullptr, nullptr, nullptr, a.dx}, lane);
}
CudaLaunch prepare_wgrad(const Invocation& call, Lane& lane) {
  const signature::scaled_linear::BackwardWeight<Arg> a(call.args);
  if (!is_fp8(call)) return {};
  return multiply_depth("scaled_linear wgrad", {a.dy, a.dy_scale, a.x, a.x_scale, nullptr, a.dw}, lane);
}
CudaLaunch prepare_grouped_forward(const Invocation& call, Lane& lane) {
  const signature::scaled_grouped_linear::Forward<Arg> a(call.args);
  if (!is_fp8(call)) return {};
  return multiply_rows("scaled_grouped_linear forward",
                       {a.x, a.x_scale, a.w, a.w_scale, &a.offsets, nullptr, nullptr, a.y}, lane);
}
CudaLaunch prepare_grouped_dgrad(const Invocation& call, Lane& lane) {
  const signature::scaled_grouped_linear::BackwardInput<Arg> a(call.args);
  if (!is_fp8(call)) return {};
  return multiply_rows("scaled_grouped_linear dgrad",
                       {a.dy, a.dy_scale, a.w, a.w_scale, &a.offsets, nullptr, nullptr, a.dx}, lane);
}
CudaLaunch prepare_grouped_wgrad(const Invocation& call, Lane& lane) {
  const signature::scaled_grouped_linear::BackwardWeight<Arg> a(call.args);
  if (!is_fp8(call)) return {};
  return multiply_depth("scaled_grouped_linear wgrad", {a.dy, a.dy_scale, a.x, a.x_scale, &a.offsets, a.dw},
                        lane);
}

constexpr CudaBinding kTable[] = {
    row<signature::scaled_linear::Forward>(prepare_forward),
    row<signature::scaled_linear::BackwardInput>(prepare_dgrad),
    row<signature::scaled_linear::BackwardWeight>(prepare_wgrad),
    row<signature::scaled_grouped_linear::Forward>(prepare_grouped_forward),
    row<signature::scaled_grouped_linear::BackwardInput>(prepare_grouped_dgrad),
    row<signature::scaled_grouped_linear::BackwardWeight>(prepare_grouped_wgrad),
};

}  // namespace

std::span<const CudaBinding> scaled_linear_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
