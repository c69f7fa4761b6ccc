// The expert layers: one matrix per expert, applied to the expert's own rows [offsets[e], offsets[e+1]).
// Argument lists are in program/ops.def. Rows from offsets[E] on are neither read nor written.
//
// grouped_linear  y_r = w_e x_r + bias_e s_r; dx_r = w_e^T dy_r; ds_r = dy_r . bias_e; dw_e = sum over rows
//                 of e of dy_r x_r^T; dbias_e = sum over rows of e of dy_r s_r. x [R,in], w [E,out,in], y
//                 [R,out], bias [E,out], s = row_scale [R] in the router type, 1 when absent: a routing
//                 probability that the rows carry already still has to reach the bias. One BLAS call per
//                 tile; tiles follow from offsets and shapes alone, the reduction is never split, so bits do
//                 not depend on the number of threads. ds and dbias are summed in double, dbias over
//                 ascending rows. An expert without rows: overwriting dw and dbias writes exact zeros,
//                 accumulating leaves them untouched.
// expert_swiglu   a = f(gate, up) * p in the compute type, f of kernels/swiglu/activation.h, gu [R,2f] = gate
//                 | up, p = row_probs [R] in the router type.
//                 Backward: dgu, and drow_probs_r (+)= sum_f da * f(gate, up) in 16 double partial sums,
//                 lane = column mod 16, added in lane order.
#pragma once

#include "kernels/bind.h"
