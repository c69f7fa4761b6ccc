// What happens to rows between a computation and a collective: sums, gathers, cuts and zeros. Argument lists
// are in program/ops.def.
//
// add_rows     x, shared, residual, y [T,w], bias [w]: y = ((x + bias) + shared) + residual, in this order,
//              in the element type (float or double). Backward: dbias (+)= column sums of dy, in double over
//              ascending rows, rounded once.
// take_rows    x [N] or [N,w], index i32[R], y [R] or [R,w], any element type: y[r] (+)= x[index[r]]; index
//              -1 is a zero row. With offsets i32[any] only rows r < offsets[last] are written or looked at.
//              An index outside [-1, N), or offsets[last] outside [0, R], throws before anything is written.
//              Both phases are this function.
// columns      x [T,W] -> y [T,w]: y[t] = x[t, begin : begin + w], attr begin. Backward: a [T,wa], b [T,wb]
//              -> y [T,wa+wb], a | b. Any element type.
// fill_zero    y = 0; any shape and element type, all phases.
// narrow       x f32, any shape: x = the nearest bfloat16, ties to even; a NaN stays one. On the CPU only, where it
//              stands for a store of bfloat16 (verify/narrow.h). All phases but the update.
// split_heads  x [T, a|b|c] -> y [n, T, (a+b+c)/n]: block j is part j of a | part j of b | part j of c of
//              every row; attrs a, b, c (widths, each a multiple of n; 0 is none) and parts (n). y may be
//              declared [n T, (a+b+c)/n], which is the same memory. merge_heads is its inverse, x and y
//              exchanged. Both phases of each are the same function. Any element type.
//
// Arguments do not overlap. No result depends on the number of threads.
#pragma once

#include "kernels/bind.h"
