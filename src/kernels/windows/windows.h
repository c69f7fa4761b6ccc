// Rows to experts on other ranks and back, stored into their windows (program::Space::Window). Argument lists are in
// program/ops.def.
//
// n ranks; rank j holds the experts of expert rank p = j / copies; El experts each, P = n / copies expert ranks. A token
// goes once to every rank that has an expert of it, and every such rank sends one sum back.
//
// Tokens that source s sends to expert rank p are numbered 0, 1, ... by ascending token; token_offsets[p] counts those to
// the ranks before p. all_tokens i32[n, P+1] holds the token_offsets of all sources. So on rank p
//   received token (s, i) lies in row  sum over s' < s of (tokens of s' to p) + i  of what was sent, and
//   its sum comes back to row  copies * token_offsets_s[p] + c * (tokens of s to p) + i  of what was returned,
// c being which copy of p gave it. Rows of experts are ordered as everywhere, (local expert, source, token).
//
// send_plan   token_row i32[T,k] (-1: dropped), idx i32[T,k] ascending, all_offsets i32[n,E+1] -> token_offsets i32[P+1];
//             token_slot i32[T,P]: the number of token t among those to p, -1 if it does not go there; row_base i32[E]:
//             the row, on its rank, of this rank's first row of expert e; expert_offsets i32[El+1] of this rank's own.
// push_rows   forward: each token's row x[t], its list of rows there (token_rows i32[.,K], ascending, -1 behind), and for
//             each of these its row among the sent (source_row) and its probability (row_probs). Fillers of the plan get
//             source_row -1 and probability 0. Backward: the rows alone.
// place_rows  rows[r] = sent[source_row[r]], zero where that is -1; forward also keeps probabilities and both lists.
// push_sums   the sum, in C, of a received token's rows by ascending expert, rounded to the type of the rows, to the rank
//             the token came from. Backward also the gradients of its probabilities, in the order of its list.
// add_sums    y[t] = the sums of token t over ranks ascending, in double (bf16 rows: in float), starting from the first (a
//             rank without rows of it counts as +0), rounded once: bits of combine_ranks. Backward: the same into dx,
//             and dprobs[t,slot], summed over copies in double, 0 where dropped.
// meet        is a collective (program/ops.def): between a store and who reads it, and between who reads and the next
//             store into the same bytes. Where it could not be kept (met 0), what is read is NaN: nothing is committed.
//
// Only rows in use are written; no store ends outside the windows' values.
#pragma once

#include "kernels/bind.h"
