// The gated activations of swiglu and expert_swiglu, chosen by attr activation.
//
//   0 silu     a = silu(gate) * up, silu(g) = g sigmoid(g)
//   1 clamped  g = min(gate, limit), u = clamp(up, -limit, limit), a = (u + 1) * g * sigmoid(alpha g);
//              attrs limit > 0 and alpha. A number beyond a limit gets no gradient; one that equals it does.
#pragma once

#include <cmath>

#include "kernels/bind.h"
#include "kernels/math/exp.h"

namespace pleat::kernels {

enum class Activation : int64_t { Silu = 0, Clamped = 1 };

// Throws base::Error when the attributes name no activation.
inline void require_activation(const Arg& of, const Invocation& call) {
  const double number = call.attr("activation");
  if (number == 0) return;
  if (number != 1) refuse(of, "activation is {}, needed 0 (silu) or 1 (clamped)", number);
  const double limit = call.attr("limit"), alpha = call.attr("alpha");
  if (!(limit > 0) || !std::isfinite(alpha))
    refuse(of, "limit {} and alpha {}: needed a positive limit and a finite alpha", limit, alpha);
}
inline Activation activation_of(const Invocation& call) {
  return static_cast<Activation>(call.integer("activation"));
}

// The clamped activation of one element. Comparisons are such that NaN passes through.
template <class T>
struct Clamped {
  T limit, alpha;
  explicit Clamped(const Invocation& call)
      : limit(static_cast<T>(call.attr("limit"))), alpha(static_cast<T>(call.attr("alpha"))) {}

  struct Point {
    T value, dgate, dup;  // a, da/dgate, da/dup
  };
  T value(T gate, T up) const {
    const T g = clamp_gate(gate);
    return (clamp_up(up) + T(1)) * (g * fast_sigmoid(alpha * g));
  }
  Point point(T gate, T up) const {
    const T g = clamp_gate(gate), u1 = clamp_up(up) + T(1), s = fast_sigmoid(alpha * g), glu = g * s;
    const T slope = u1 * (s + alpha * glu * (T(1) - s));
    return {u1 * glu, gate > limit ? T(0) : slope, up > limit ? T(0) : up < -limit ? T(0) : glu};
  }

 private:
  T clamp_gate(T gate) const { return gate > limit ? limit : gate; }
  T clamp_up(T up) const { return up > limit ? limit : up < -limit ? -limit : up; }
};

}  // namespace pleat::kernels
