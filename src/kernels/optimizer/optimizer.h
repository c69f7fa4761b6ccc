// Element-wise kernels around the weight update. All sums are in an order fixed by the shape.
//
//   copy         y = x; any element type, same shape.
//   add_grad     y += x; float or double (the two gradients of a tied weight).
//   grad_norm    parts f64[ceil(n / 65536)]: sums of squares, in double, of consecutive blocks of g (any
//   shape, n elements). With coords i64[kNumGroups], g holds elements [c s, (c+1) s) of a tensor of n = attr
//   elements, s = attr shard, c = coords[attr group]: blocks it does not touch get 0, and its elements past n
//   are not read.
//   clip         parts f64[P], loss f64[any], overflow? -> grad_scale f64[2] = {norm, factor},
//                commit i32[1]. norm = sqrt(sum of parts, ascending); factor = clip / norm where clip > 0 and
//                norm > clip, else 1; commit = 1 when norm and every element of loss are finite and every
//                element of overflow i64[any] is 0, else 0. attr clip (0 = none).
//   adamw        hyper f64[4] = {learning rate, step from 1, -, -}; with gs = g * grad_scale[1] and lr =
//                hyper[0] * lr_mult:
//                  m = beta1 m + (1 - beta1) gs
//                  v = beta2 v + (1 - beta2) gs^2
//                  w = w (1 - lr weight_decay) - lr / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + eps)
//                in the element type (float or double), scalars in double. With float, m and v are each kept in
//                f32 or bf16, rounded to nearest even as they are written; w moves by what they were before that.
//                commit == 0: nothing is written. attrs
//                beta1 beta2 eps weight_decay lr_mult. One pass over memory. With coords, g, m and v hold
//                elements [c s, (c+1) s) of w, as in grad_norm: only those elements of w change, with the
//                bits of an update of the whole; elements of g, m and v past the end of w are neither read
//                nor written.
//   adamw_narrow the same on float weights kept as bf16 w and rest i16 (tensor/halves.h). g is f32 or bf16.
//   adamw_coded  the same on weights and moments of fewer bits: w f32, or bf16 with rest i16, rest u8 or nothing
//                (tensor/short_master.h); m and v each as above, or as codes u8 with scales
//                f32[ceil(n / 256)] (tensor/block_codes.h): of m SignedCode, of the root of v RootCode. All are
//                opened into floats; the step is that of floats; each is rounded once as it is written. Codes are
//                of blocks of 256 elements of w: a piece begins with a block. What a weight leaves out is
//                rounded by chance, by number e % 4 of draw e / 4 of the stream (rng[0], Update, rng[1], attr
//                stream) of base/rng.h, e = attr element
//                plus the element of w.
//   bias_update  load i64[E], commit i32[1] -> bias f32[E] += rate * sign(mean(load) - load); the sign is
//                exact, taken in integers as sign(sum - E load). commit == 0: nothing is written. attr rate.
#pragma once

#include "kernels/bind.h"

namespace pleat::kernels {

constexpr int64_t kNormBlock = 65536;

}  // namespace pleat::kernels
