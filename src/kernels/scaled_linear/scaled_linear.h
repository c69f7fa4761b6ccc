// Products of codes of few bits (kernels/quantize): linear and grouped_linear without bias of the routed form. Argument
// lists are in program/ops.def. Here is recipe fp8; the others have no kernels.
//
//   y = sum over blocks b of 128 of the depth, ascending, of (sum over k in b, ascending, of x_k w_k) s_x s_w
//
// x_k and w_k are the values of codes, s their scales, powers of two. Both sums are in the type of y (f32 or f64); the
// product of two codes and its scaling are exact, so what rounds are the additions. Bias and residual are added to the sum.
//
//   forward          x by rows, w as it is
//   backward_input   dy by rows, w turned: dx (+)= dy w
//   backward_weight  columns of dy and x: dw (+)= dy^T x; with offsets a block has rows of one expert only. An expert
//                    without rows: overwriting writes zeros, accumulating leaves dw untouched.
//
// Tiles depend on shapes and offsets alone: bits do not depend on threads. Rows past offsets[E] are neither read nor written.
#pragma once

#include "kernels/bind.h"
#include "tensor/recipe.h"
