// The expert layers: one matrix per expert, applied to the expert's own rows [offsets[e], offsets[e+1]).
// Argument lists are in program/ops.def. Rows from offsets[E] on are neither read nor written.
//
// grouped_linear  y_r = w_e x_r; dx_r = w_e^T dy_r; dw_e = sum over rows of e of dy_r x_r^T. x [R,in], w
// [E,out,in], y [R,out].
//                 One BLAS call per tile; tiles follow from offsets and shapes alone, the reduction is never
//                 split, so bits do not depend on the number of threads. An expert without rows: overwriting
//                 dw writes exact zeros, accumulating leaves it untouched.
// expert_swiglu   a = silu(gate) * up * p in the compute type, gu [R,2f] = gate | up, p = row_probs [R] in
// the router type.
//                 Backward: dgu, and drow_probs_r = sum_f da * silu(gate) * up in 16 double partial sums,
//                 lane = column mod 16, added in lane order.
#pragma once

#include "kernels/bind.h"

namespace pleat::kernels {

Kernel resolve_grouped_linear_forward(const Invocation& call);
Kernel resolve_grouped_linear_backward_input(const Invocation& call);
Kernel resolve_grouped_linear_backward_weight(const Invocation& call);
Kernel resolve_expert_swiglu_forward(const Invocation& call);
Kernel resolve_expert_swiglu_backward_input(const Invocation& call);

}  // namespace pleat::kernels
