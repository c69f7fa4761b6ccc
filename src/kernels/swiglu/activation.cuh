// activation.h for the GPU: the two gated activations as small function objects, in float.
#pragma once

#include "kernels/swiglu/activation.h"

namespace pleat::kernels::cuda {

struct GatePoint {
  float value, dgate, dup;  // a, da/dgate, da/dup
};

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

struct SiluGate {
  __device__ float value(float gate, float up) const { return gate * sigmoid(gate) * up; }
  __device__ GatePoint point(float gate, float up) const {
    const float s = sigmoid(gate);
    return {gate * s * up, up * s * (1.0f + gate * (1.0f - s)), gate * s};
  }
};

struct ClampedGate {
  float limit, alpha;
  __device__ float value(float gate, float up) const { return point(gate, up).value; }
  __device__ GatePoint point(float gate, float up) const {
    const float g = gate > limit ? limit : gate, u1 = (up > limit ? limit : up < -limit ? -limit : up) + 1.0f;
    const float s = sigmoid(alpha * g), glu = g * s;
    const float slope = u1 * (s + alpha * glu * (1.0f - s));
    return {u1 * glu, gate > limit ? 0.0f : slope, up > limit || up < -limit ? 0.0f : glu};
  }
};

// Calls f with the function object the attributes name.
template <class F>
void with_activation(const Invocation& call, F&& f) {
  if (activation_of(call) == Activation::Silu)
    f(SiluGate{});
  else
    f(ClampedGate{static_cast<float>(call.attr("limit")), static_cast<float>(call.attr("alpha"))});
}

}  // namespace pleat::kernels::cuda
