// Cross entropy over logits, masked per token.
//
//   forward         logits [T,V], labels i32[T], mask u8[T]  ->  loss f64[2] (+)= {sum of losses, number of
//                   tokens}, token_loss [T]? = log(sum exp(logits)) - logits[label], 0 where masked out
//   backward_input  labels, mask, norm f64[>=1]  ->  logits [T,V] turned into (softmax - onehot(label)) *
//                   norm[0] in place (0 where masked out), loss as above (not scaled)
//
// Float or double (token_loss like logits). Tokens with mask 0 take no part: their logits may be NaN and
// their labels anything. Any other label outside [0,V) throws base::Error before anything is written. The
// maximum is taken out first; exponentials are in the element type, their sum and the loss in double. The
// order of sums depends on T and V only.
//
// The same over a vocabulary cut into n pieces of V columns, one per rank of a group, c = coords[attr group]:
//
//   vocab_stats  logits [T,V] (this rank's columns), labels, mask, coords i64[kNumGroups]  ->  stats f64[T,3]
//                = {maximum, sum of exp(x - maximum), the label's logit if it is one of these columns, else
//                0}; zeros where masked out
//   vocab_loss   forward: all_stats f64[n,T,3] (or declared [n T,3]), mask  ->  loss, token_loss? as above
//                backward_input: all_stats, labels, mask, norm, coords  ->  logits [T,V] turned into this
//                rank's columns of the gradient, loss as above
//
// Sums over ranks run over ascending ranks in double, so all ranks get the bits of one loss; it and the
// gradient are those of the whole vocabulary but for the rounding of that sum. A label outside [0, n V)
// throws in the backward form; vocab_stats, which does not know n, throws at negative ones only.
#pragma once

#include "kernels/bind.h"
