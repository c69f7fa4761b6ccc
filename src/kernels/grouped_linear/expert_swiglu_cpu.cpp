// Gated activation of expert rows with the routing probability multiplied in, so that the gradient of the
// probability needs only what is kept anyway, and expert outputs need not be kept.
#include <algorithm>

#include "base/checked.h"
#include "kernels/grouped_linear/grouped_linear.h"
#include "kernels/math/exp.h"
#include "kernels/router/type_pair.h"
#include "kernels/swiglu/activation.h"

namespace pleat::kernels {
namespace {

constexpr int64_t kTileRows = 64;
constexpr int64_t kLanes = 16;

// What a kernel needs of an activation: a(gate, up) without the probability, and the three gradients of d
// times p times it.
template <class C>
struct Gradient {
  C dgate, dup, dprob;
};

template <class C>
struct SiluRow {
  explicit SiluRow(const Invocation&) {}
  C value(C gate, C up) const { return gate * fast_sigmoid(gate) * up; }
  Gradient<C> gradient(C d, C p, C gate, C up) const {
    const C s = fast_sigmoid(gate), silu = gate * s, d_silu_up = d * p;
    return {d_silu_up * up * (s + silu * (C(1) - s)), d_silu_up * silu, d * silu * up};
  }
};

template <class C>
struct ClampedRow : Clamped<C> {
  using Clamped<C>::Clamped;
  Gradient<C> gradient(C d, C p, C gate, C up) const {
    const auto at = this->point(gate, up);
    return {d * p * at.dgate, d * p * at.dup, d * at.value};
  }
};

template <template <class> class ActivationFor>
struct Kernels {
  template <class C, class R>
  struct Forward {
    static void run(const Invocation& call) {
      const signature::expert_swiglu::Forward<Arg> args(call.args);
      const C* gu = args.gu.as<C>();
      const R* row_probs = args.row_probs.as<R>();
      C* a = args.a.as<C>();
      const int64_t f = args.a.dim(1), num_rows = args.offsets.as<int32_t>()[args.offsets.dim(0) - 1];
      const ActivationFor<C> activation(call);
      call.pool->for_each_tile(base::ceil_div(num_rows, kTileRows), [&, activation](int64_t tile) {
        for (int64_t r = tile * kTileRows; r < std::min(num_rows, (tile + 1) * kTileRows); ++r) {
          const C* __restrict gate = gu + r * 2 * f, * __restrict up = gate + f;
          C* __restrict out = a + r * f;
          const C p = static_cast<C>(row_probs[r]);
          for (int64_t i = 0; i < f; ++i) out[i] = activation.value(gate[i], up[i]) * p;
        }
      });
    }
  };

  template <class C, class R>
  struct BackwardInput {
    // One row; returns the gradient of its probability.
    static double row(const ActivationFor<C>& of, const C* __restrict da, const C* __restrict gate,
                      const C* __restrict up, C p, int64_t f, C* __restrict dgate, C* __restrict dup) {
      const ActivationFor<C> activation = of;
      double lanes[kLanes] = {};
      const auto column = [&](int64_t i, int64_t lane) {
        const Gradient<C> g = activation.gradient(da[i], p, gate[i], up[i]);
        dup[i] = g.dup;
        dgate[i] = g.dgate;
        lanes[lane] += static_cast<double>(g.dprob);
      };
      const int64_t whole = f / kLanes * kLanes;
      for (int64_t i = 0; i < whole; i += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) column(i + lane, lane);
      for (int64_t i = whole; i < f; ++i) column(i, i - whole);
      double sum = 0;
      for (double lane : lanes) sum += lane;
      return sum;
    }

    static void run(const Invocation& call) {
      const signature::expert_swiglu::BackwardInput<Arg> args(call.args);
      const C *da = args.da.as<C>(), *gu = args.gu.as<C>();
      const R* row_probs = args.row_probs.as<R>();
      C* dgu = args.dgu.as<C>();
      R* drow_probs = args.drow_probs.as<R>();
      const bool add = args.drow_probs.into() == Into::Accumulate;
      const int64_t f = args.da.dim(1), num_rows = args.offsets.as<int32_t>()[args.offsets.dim(0) - 1];
      const ActivationFor<C> activation(call);
      call.pool->for_each_tile(base::ceil_div(num_rows, kTileRows), [&](int64_t tile) {
        for (int64_t r = tile * kTileRows; r < std::min(num_rows, (tile + 1) * kTileRows); ++r) {
          const C* gate = gu + r * 2 * f;
          C* dgate = dgu + r * 2 * f;
          const double dprob =
              row(activation, da + r * f, gate, gate + f, static_cast<C>(row_probs[r]), f, dgate, dgate + f);
          drow_probs[r] = static_cast<R>(add ? static_cast<double>(drow_probs[r]) + dprob : dprob);
        }
      });
    }
  };
};

Kernel resolve_forward(const Invocation& call) {
  const signature::expert_swiglu::Forward<Arg> args(call.args);
  return activation_of(call) == Activation::Silu
             ? select_pair<Kernels<SiluRow>::Forward>({args.a.dtype, args.row_probs.dtype})
             : select_pair<Kernels<ClampedRow>::Forward>({args.a.dtype, args.row_probs.dtype});
}

Kernel resolve_backward_input(const Invocation& call) {
  const signature::expert_swiglu::BackwardInput<Arg> args(call.args);
  return activation_of(call) == Activation::Silu
             ? select_pair<Kernels<SiluRow>::BackwardInput>({args.da.dtype, args.row_probs.dtype})
             : select_pair<Kernels<ClampedRow>::BackwardInput>({args.da.dtype, args.row_probs.dtype});
}

constexpr Binding kTable[] = {
    row<signature::expert_swiglu::Forward>(resolve_forward),
    row<signature::expert_swiglu::BackwardInput>(resolve_backward_input),
};

}  // namespace

std::span<const Binding> expert_swiglu_bindings() { return kTable; }

}  // namespace pleat::kernels
