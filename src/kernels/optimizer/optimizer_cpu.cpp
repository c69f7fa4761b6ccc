// Copies, sums of two gradients, the gradient norm and the decision to commit. The updates are in
// update_cpu.cpp.
#include "kernels/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/math/coords.h"
#include "kernels/math/reduce.h"
#include "kernels/math/tiles.h"

namespace pleat::kernels {
namespace {

template <class Args>
void run_copy(const Invocation& call) {
  const Args args(call.args);
  const int64_t bytes = args.x.size() * tensor::size_of(args.x.dtype);
  const auto* from = static_cast<const std::byte*>(args.x.data);
  auto* to = static_cast<std::byte*>(args.y.data);
  const Tiling tiling{bytes, 1 << 17};
  call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    const int64_t begin = tiling.begin(tile_idx);
    std::memcpy(to + begin, from + begin, static_cast<size_t>(tiling.end(tile_idx) - begin));
  });
}

template <class T>
void add(const Invocation& call, const Arg& x, const Arg& y) {
  const T* addend = x.as<T>();
  T* sum = y.as<T>();
  const Tiling tiling = element_tiling(x.size());
  call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    const T* __restrict from = addend;
    T* __restrict to = sum;
    for (int64_t i = tiling.begin(tile_idx), end = tiling.end(tile_idx); i < end; ++i) to[i] += from[i];
  });
}

template <class T>
struct AddInputGradient {
  static void run(const Invocation& call) {
    const signature::add_grad::BackwardInput<Arg> args(call.args);
    add<T>(call, args.x, args.y);
  }
};

template <class T>
struct AddWeightGradient {
  static void run(const Invocation& call) {
    const signature::add_grad::BackwardWeight<Arg> args(call.args);
    add<T>(call, args.x, args.y);
  }
};

template <class T>
struct GradNorm {
  static void run(const Invocation& call) {
    const signature::grad_norm::Update<Arg> args(call.args);
    const T* g = args.g.as<T>();
    double* parts = args.parts.as<double>();
    const bool cut = args.coords.present;
    const int64_t elements = cut ? call.integer("elements") : args.g.size();
    const Piece piece =
        cut ? piece_of(elements, args.g.size(), coordinate(args.coords, call)) : Piece{0, elements};
    const Tiling tiling{elements, kNormBlock};
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      const int64_t begin = std::max(tiling.begin(tile_idx), piece.first);
      const int64_t end = std::min(tiling.end(tile_idx), piece.first + piece.count);
      parts[tile_idx] = begin < end ? sum_of_squares(g + (begin - piece.first), end - begin) : 0.0;
    });
  }
};

void run_clip(const Invocation& call) {
  const signature::clip::Update<Arg> args(call.args);
  const double* parts = args.parts.as<double>();
  const double* loss = args.loss.as<double>();
  double* grad_scale = args.grad_scale.as<double>();
  const double clip = call.attr("clip");
  double sum = 0;
  for (int64_t i = 0; i < args.parts.size(); ++i) sum += parts[i];
  const double norm = std::sqrt(sum);
  bool finite = std::isfinite(norm);
  for (int64_t i = 0; i < args.loss.size(); ++i) finite = finite && std::isfinite(loss[i]);
  bool fits = true;
  for (int64_t i = 0; args.overflow.present && i < args.overflow.size(); ++i)
    fits = fits && args.overflow.as<int64_t>()[i] == 0;
  grad_scale[0] = norm;
  grad_scale[1] = clip > 0 && norm > clip ? clip / norm : 1.0;
  *args.commit.as<int32_t>() = finite && fits ? 1 : 0;
}

// On the CPU a stage is over when it returns: there is nothing to wait for.
void run_host_wait(const Invocation&) {}

constexpr Binding kTable[] = {
    row<signature::copy::Forward, run_copy<signature::copy::Forward<Arg>>>(),
    row<signature::copy::BackwardInput, run_copy<signature::copy::BackwardInput<Arg>>>(),
    row<signature::copy::Update, run_copy<signature::copy::Update<Arg>>>(),
    row<signature::host_wait::Forward, run_host_wait>(),
    row<signature::host_wait::BackwardInput, run_host_wait>(),
    row<signature::host_wait::BackwardWeight, run_host_wait>(),
    row<signature::host_wait::Update, run_host_wait>(),
    row<signature::add_grad::BackwardInput, AddInputGradient>([](const auto& a) { return a.x.dtype; }),
    row<signature::add_grad::BackwardWeight, AddWeightGradient>([](const auto& a) { return a.x.dtype; }),
    row<signature::grad_norm::Update, GradNorm>([](const auto& a) { return a.g.dtype; }),
    row<signature::clip::Update, run_clip>(),
};

}  // namespace

std::span<const Binding> optimizer_bindings() { return kTable; }

}  // namespace pleat::kernels
