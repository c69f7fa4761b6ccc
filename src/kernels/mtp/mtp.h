// Multi-token prediction: what depth d reads and predicts, and the weight of its loss.
//
//   mtp_shift   tokens i32[T], labels i32[T], loss_mask u8[T], valid u8[T], doc_start i32[T] (first row of
//               the row's document)  ->  ahead i32[T], ahead_labels i32[T], mask u8[T], count i64[1] (+)= sum
//               of mask. attrs depth (1 or more), seq_len (T is a multiple: sequences lie back to back)
//   mtp_weight  count i64[1]  ->  norm f64[1] = weight / max(count, 1); attr weight
//
// Row t of depth d reads token t + d and predicts token t + d + 1, which is the label of row t + d. Row t + d
// must be a real token of the same sequence and the same document as row t. Then
//   ahead[t] = tokens[t + d], ahead_labels[t] = labels[t + d], mask[t] = loss_mask[t + d],
// so a label counts here exactly where it counts for the loss itself: not behind the end of a document, not
// where it is masked. Otherwise the row stays within its document: ahead[t] = tokens[t], label 0, mask 0. All
// later rows of that document are masked as well and attention is causal, so no counted loss sees such a row.
#pragma once

#include "kernels/bind.h"
