// Copies, sums of two gradients, the gradient norm and the decision to commit. The updates are in
// update_cpu.cpp.
#include "kernels/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "kernels/math/coords.h"
#include "kernels/math/reduce.h"
#include "kernels/math/require.h"
#include "kernels/math/tiles.h"

namespace pleat::kernels {
namespace {

void run_copy(const Invocation& call) {
  const int64_t bytes = call[0].size() * tensor::size_of(call[0].dtype);
  const auto* from = static_cast<const std::byte*>(call[0].data);
  auto* to = static_cast<std::byte*>(call[1].data);
  const Tiling tiling{bytes, 1 << 17};
  call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    const int64_t begin = tiling.begin(tile_idx);
    std::memcpy(to + begin, from + begin, static_cast<size_t>(tiling.end(tile_idx) - begin));
  });
}

template <class T>
struct AddGrad {
  static void run(const Invocation& call) {
    const T* x = call[0].as<T>();
    T* y = call[1].as<T>();
    const Tiling tiling = element_tiling(call[0].size());
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      const T* __restrict from = x;
      T* __restrict to = y;
      for (int64_t i = tiling.begin(tile_idx), end = tiling.end(tile_idx); i < end; ++i) to[i] += from[i];
    });
  }
};

template <class T>
struct GradNorm {
  static void run(const Invocation& call) {
    const T* g = call[0].as<T>();
    double* parts = call[2].as<double>();
    const bool cut = call[1].present;
    const int64_t elements = cut ? call.integer("elements") : call[0].size();
    const Piece piece =
        cut ? piece_of(elements, call[0].size(), coordinate("grad_norm", call, call[1])) : Piece{0, elements};
    const Tiling tiling{elements, kNormBlock};
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      const int64_t begin = std::max(tiling.begin(tile_idx), piece.first);
      const int64_t end = std::min(tiling.end(tile_idx), piece.first + piece.count);
      parts[tile_idx] = begin < end ? sum_of_squares(g + (begin - piece.first), end - begin) : 0.0;
    });
  }
};

void run_clip(const Invocation& call) {
  const double* parts = call[0].as<double>();
  const double* loss = call[1].as<double>();
  double* grad_scale = call[3].as<double>();
  const double clip = call.attr("clip");
  double sum = 0;
  for (int64_t i = 0; i < call[0].size(); ++i) sum += parts[i];
  const double norm = std::sqrt(sum);
  bool finite = std::isfinite(norm);
  for (int64_t i = 0; i < call[1].size(); ++i) finite = finite && std::isfinite(loss[i]);
  bool fits = true;
  for (int64_t i = 0; call[2].present && i < call[2].size(); ++i)
    fits = fits && call[2].as<int64_t>()[i] == 0;
  grad_scale[0] = norm;
  grad_scale[1] = clip > 0 && norm > clip ? clip / norm : 1.0;
  *call[4].as<int32_t>() = finite && fits ? 1 : 0;
}

Kernel resolve_copy(const Invocation& call) {
  require_like("copy", "y", call[1], "x", call[0]);
  return run_copy;
}

Kernel resolve_add_grad(const Invocation& call) {
  require_same_dtype("add_grad", call, {"x", "y"});
  require_like("add_grad", "y", call[1], "x", call[0]);
  require_in_place("add_grad", "y", call[1]);
  return select_float<AddGrad>(call[0].dtype);
}

Kernel resolve_grad_norm(const Invocation& call) {
  require_same_dtype("grad_norm", call, {"g"});
  require_coords("grad_norm", call, call[1]);
  int64_t elements = call[0].size();
  if (call[1].present) {
    require_shard("grad_norm", "g", call, call[0]);
    elements = call.integer("elements");
    if (elements < 0) base::fail("[grad_norm] attribute 'elements' is {}, needed 0 or more", elements);
  }
  require_dtype("grad_norm", "parts", call[2], tensor::Dtype::F64);
  require_shape("grad_norm", "parts", call[2], {base::ceil_div(elements, kNormBlock)});
  return select_float<GradNorm>(call[0].dtype);
}

Kernel resolve_clip(const Invocation& call) {
  require_rank("clip", "parts", call[0], 1);
  require_dtype("clip", "parts", call[0], tensor::Dtype::F64);
  require_dtype("clip", "loss", call[1], tensor::Dtype::F64);
  if (call[2].present) require_dtype("clip", "overflow", call[2], tensor::Dtype::I64);
  require_dtype("clip", "grad_scale", call[3], tensor::Dtype::F64);
  require_shape("clip", "grad_scale", call[3], {2});
  require_dtype("clip", "commit", call[4], tensor::Dtype::I32);
  require_shape("clip", "commit", call[4], {1});
  if (!(call.attr("clip") >= 0))
    base::fail("[clip] attribute 'clip' is {}, needed 0 or more", call.attr("clip"));
  return run_clip;
}

}  // namespace

std::span<const Binding> optimizer_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr Binding rows[] = {
      {KernelKind::copy, Phase::Forward, resolve_copy},
      {KernelKind::add_grad, Phase::BackwardInput, resolve_add_grad},
      {KernelKind::add_grad, Phase::BackwardWeight, resolve_add_grad},
      {KernelKind::grad_norm, Phase::Update, resolve_grad_norm},
      {KernelKind::clip, Phase::Update, resolve_clip},
      {KernelKind::adamw, Phase::Update, resolve_adamw},
      {KernelKind::bias_update, Phase::Update, resolve_bias_update},
  };
  return rows;
}

}  // namespace pleat::kernels
