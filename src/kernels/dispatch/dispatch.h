// From chosen experts to rows and back. Rows are ordered by (expert, token); argument lists are in
// program/ops.def.
//
// dispatch_plan  attrs experts, top_k, capacity (0: every choice gets its row), policy (0: an expert over
// capacity keeps its
//                largest probabilities, of equal ones the earlier token; 1: it keeps its first tokens), pad
//                (1: every expert gets exactly `capacity` rows, fillers last). Expert e owns rows
//                [offsets[e], offsets[e+1]). Fillers and rows from offsets[E] on have row_token = row_slot =
//                -1; a dropped choice has token_row = -1 and is counted in dropped. A plan of more rows than
//                row_token holds throws before anything is written outside. Serial: a counting sort, with a
//                selection in place for experts over capacity.
// permute        rows[r] = x[row_token[r]], row_probs[r] = probs[row_token[r], row_slot[r]]; zero for
// fillers.
//                Backward: dx[t] = sum over slots, ascending, of drows[token_row[t,slot]], summed in C before
//                it is stored or added to what dx holds; dprobs[t,slot] = drow_probs[token_row[t,slot]], 0
//                where dropped.
// combine        y[t] = ((sum over slots, ascending, of rows[token_row[t,slot]]) + shared[t]) + residual[t];
// dropped slots add
//                nothing. Backward: drows[r] = dy[row_token[r]], zero for fillers.
// Rows from offsets[E] on are neither read nor written. x, dx, rows, y in the compute type; probabilities in
// the router type.
#pragma once

#include "kernels/bind.h"

namespace pleat::kernels {

Kernel resolve_dispatch_plan(const Invocation& call);
Kernel resolve_permute_forward(const Invocation& call);
Kernel resolve_permute_backward_input(const Invocation& call);
Kernel resolve_combine_forward(const Invocation& call);
Kernel resolve_combine_backward_input(const Invocation& call);

}  // namespace pleat::kernels
