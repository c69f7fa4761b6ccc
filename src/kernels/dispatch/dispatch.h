// From chosen experts to rows and back. Rows are ordered by (expert, token); argument lists are in
// program/ops.def.
//
// dispatch_plan  attrs experts, top_k, capacity (0: every choice gets its row), policy (0: an expert over
//                capacity keeps its largest probabilities, of equal ones the earlier token; 1: it keeps its
//                first tokens), pad (1: every expert gets exactly `capacity` rows, fillers last). Expert e
//                owns rows [offsets[e], offsets[e+1]). Fillers and rows from offsets[E] on have row_token =
//                row_slot = -1; a dropped choice has token_row = -1 and is counted in dropped. A plan of more
//                rows than row_token holds throws before anything is written outside. Serial: a counting
//                sort, with a selection in place for experts over capacity.
// permute        rows[r] = x[row_token[r]], row_probs[r] = probs[row_token[r], row_slot[r]]; zero for
//                fillers. Backward: dx[t] = sum over slots, ascending, of drows[token_row[t,slot]], summed in
//                C before it is stored or added to what dx holds; dprobs[t,slot] =
//                drow_probs[token_row[t,slot]], 0 where dropped. The forward's token_row is row_token the
//                other way round: whoever writes rows may go by either.
// combine        y[t] = ((sum over slots, ascending, of rows[token_row[t,slot]]) + shared[t]) + residual[t];
//                dropped slots add nothing. Backward: drows[r] = dy[row_token[r]], zero for fillers;
//                token_row as above.
//
// Over a group of n ranks (rank j holds the experts of expert rank j / copies; copies of an expert rank split
// the width of its experts, so each of them returns a part of every row). Rows of one expert rank are ordered
// by (local expert, source rank, token, that source's fillers), whichever way they came.
//
// gather_plan    The tokens of all sources were gathered, source-major, T of them each. attrs
//                experts_per_rank, copies, ranks (n), capacity, pad. kept >= 0 marks a choice its source
//                kept. With pad every source has exactly `capacity` rows per expert, and a source that kept
//                more is an error. Otherwise as dispatch_plan, for the experts of this rank; choices of other
//                experts have token_row = -1. Serial.
// receive_plan   The rows came by exchange, by (source, expert, token): source_row says where a sorted row
//                lies among them, sorted_row is the inverse; both are -1 past the end. attrs
//                experts_per_rank, copies. Serial.
// trim_plan      Between dispatch_plan and the first row that moves, where a budget is below the rows there
//                could be. An expert rank whose rows exceed attr budget keeps exactly `budget` of them: its
//                experts are cut to one common level (the largest that fits; the lowest experts of those that
//                were cut get one row more while some are left), the sources of a cut expert likewise, and a
//                source gives up its smallest probabilities (attr policy 0; of equal ones the later token) or
//                its last tokens (1). Lost choices have token_row -1 and are counted in dropped. With nothing
//                over the budget nothing is written. overflow: program/overflow.h. Serial.
// combine_ranks, permute_ranks
//                combine without its addends, and the backward of permute, on rows that came back: part j
//                holds this rank's rows of expert rank j / copies, so row r of the local plan lies in
//                `copies` parts. Slots of one part are summed ascending in C and rounded to the type of the
//                rows; parts are then summed ascending in double (bf16 rows: in float), starting from the first
//                (a part without slots counts as +0), and rounded once.
//                dprobs sums the copies of its row in double, rounded once. Bits are those of combine /
//                permute backward on gathered tokens, summed over ranks. Only the first copies * offsets[E]
//                rows are read.
//
// Rows from offsets[E] on are neither read nor written. x, dx, rows, y in the compute type; probabilities in
// the router type.
#pragma once

#include "kernels/bind.h"
