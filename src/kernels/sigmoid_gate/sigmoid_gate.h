// A learned scalar gate per token (on the output of shared experts): out = s y, s = sigmoid(x . w).
//
//   forward          x [T,h], w [h], y [T,h]  ->  out [T,h]
//   backward_input   dout, x, w, y  ->  dx [T,h] (+)= c w,  dy [T,h] = s dout,   c = (dout . y) s (1 - s)
//   backward_weight  dout, x, w, y  ->  dw [h] (+)= sum over t of c x
//
// Float or double; the dot products and s are in double; dw is summed in double over ascending t inside
// blocks of kGateBlock tokens, and the blocks are added to dw one after the other. out may be y, dy may be
// dout.
#pragma once

#include "kernels/bind.h"

namespace pleat::kernels {
constexpr int64_t kGateBlock = 8192;
}
