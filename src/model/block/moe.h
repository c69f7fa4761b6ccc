// The pieces of a mixture-of-experts block: shared experts (moe_shared.cpp), router (moe_route.cpp), and the
// way of rows to experts and back (moe_dispatch.cpp), which is where layouts differ.
#pragma once

#include "model/decoder.h"

namespace pleat::model {

// kNoValue without shared experts. Reads s.mlp_normed.
ValueId shared_forward(Decoder& d, int mb, int layer);
// Adds its part to d_normed.
void shared_backward(Decoder& d, int mb, int layer, ValueId dy, ValueId d_normed);

// Logits, choice, counts for losses that span microbatches or layers, and the plan of this rank's rows.
void route(Decoder& d, int mb, int layer);
// From the gradient of the probabilities; adds to d_normed.
void route_backward(Decoder& d, int mb, int layer, ValueId d_probs, ValueId d_normed);

// Tokens to rows of this rank's experts: sets s.rows, s.row_probs and s.expert_offsets.
void dispatch_forward(Decoder& d, int mb, int layer);
// y = residual + shared + what the experts gave each token.
ValueId combine_forward(Decoder& d, int mb, int layer, ValueId out_rows, ValueId residual, ValueId shared);
// The gradient of the experts' rows.
ValueId combine_backward(Decoder& d, int mb, int layer, ValueId dy);
struct DispatchGradients {
  ValueId d_normed, d_probs;
};
DispatchGradients dispatch_backward(Decoder& d, int mb, int layer, ValueId d_rows, ValueId d_row_probs);

// Router to combine: from s.mlp_normed to y = residual + shared + what the experts gave. Either of the two
// may be kNoValue.
ValueId routed_forward(Decoder& d, int mb, int layer, ValueId residual, ValueId shared);
// The same back as far as the router, from the gradient of y; route_backward does the rest.
DispatchGradients experts_backward(Decoder& d, int mb, int layer, ValueId dy);

}  // namespace pleat::model
