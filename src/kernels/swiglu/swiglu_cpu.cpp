#include "kernels/swiglu/swiglu.h"

#include "kernels/math/exp.h"
#include "kernels/math/tiles.h"
#include "kernels/swiglu/activation.h"

namespace pleat::kernels {
namespace {

// Calls body(gate, up, other, t) for every row: gu's two halves and the row of `other` [T,f].
template <class T, class Body>
void for_each_row(const Invocation& call, const Arg& gu, const Arg& other, const Body& body) {
  const int64_t rows = other.dim(0), width = other.dim(1);
  const Tiling tiling = row_tiling(rows, width);
  call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
      const T* gate = gu.as<T>() + t * 2 * width;
      body(gate, gate + width, other.as<T>() + t * width, t);
    }
  });
}

template <class T>
struct Forward {
  static void run(const Invocation& call) {
    const signature::swiglu::Forward<Arg> args(call.args);
    const int64_t width = args.a.dim(1);
    for_each_row<T>(call, args.gu, args.a,
                    [=](const T* __restrict gate, const T* __restrict up, T* __restrict to, int64_t) {
                      for (int64_t j = 0; j < width; ++j) to[j] = gate[j] * fast_sigmoid(gate[j]) * up[j];
                    });
  }
};

template <class T>
struct ClampedForward {
  static void run(const Invocation& call) {
    const signature::swiglu::Forward<Arg> args(call.args);
    const int64_t width = args.a.dim(1);
    const Clamped<T> activation(call);
    for_each_row<T>(call, args.gu, args.a,
                    [=](const T* __restrict gate, const T* __restrict up, T* __restrict to, int64_t) {
                      for (int64_t j = 0; j < width; ++j) to[j] = activation.value(gate[j], up[j]);
                    });
  }
};

template <class T>
struct BackwardInput {
  static void run(const Invocation& call) {
    const signature::swiglu::BackwardInput<Arg> args(call.args);
    const int64_t width = args.da.dim(1);
    T* dgu = args.dgu.as<T>();
    for_each_row<T>(call, args.gu, args.da, [=](const T* gate, const T* up, const T* d, int64_t t) {
      T* to = dgu + t * 2 * width;
      for (int64_t j = 0; j < width; ++j) {
        const T g = gate[j], u = up[j], s = fast_sigmoid(g);
        to[j] = d[j] * u * s * (T(1) + g * (T(1) - s));
        to[width + j] = d[j] * g * s;
      }
    });
  }
};

template <class T>
struct ClampedBackwardInput {
  static void run(const Invocation& call) {
    const signature::swiglu::BackwardInput<Arg> args(call.args);
    const int64_t width = args.da.dim(1);
    T* dgu = args.dgu.as<T>();
    const Clamped<T> activation(call);
    for_each_row<T>(call, args.gu, args.da, [=](const T* gate, const T* up, const T* d, int64_t t) {
      T* to = dgu + t * 2 * width;
      for (int64_t j = 0; j < width; ++j) {
        const auto at = activation.point(gate[j], up[j]);
        to[j] = d[j] * at.dgate;
        to[width + j] = d[j] * at.dup;
      }
    });
  }
};

Kernel resolve_forward(const Invocation& call) {
  const tensor::Dtype dtype = signature::swiglu::Forward(call.args).gu.dtype;
  return activation_of(call) == Activation::Silu ? select_float<Forward>(dtype)
                                                 : select_float<ClampedForward>(dtype);
}

Kernel resolve_backward_input(const Invocation& call) {
  const tensor::Dtype dtype = signature::swiglu::BackwardInput(call.args).da.dtype;
  return activation_of(call) == Activation::Silu ? select_float<BackwardInput>(dtype)
                                                 : select_float<ClampedBackwardInput>(dtype);
}

constexpr Binding kTable[] = {
    row<signature::swiglu::Forward>(resolve_forward),
    row<signature::swiglu::BackwardInput>(resolve_backward_input),
};

}  // namespace

std::span<const Binding> swiglu_bindings() { return kTable; }

}  // namespace pleat::kernels
