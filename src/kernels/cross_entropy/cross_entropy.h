// Cross entropy over logits, masked per token.
//
//   forward         logits [T,V], labels i32[T], mask u8[T]  ->  loss f64[2] (+)= {sum of losses, number of
//   tokens},
//                   token_loss [T]? = log(sum exp(logits)) - logits[label], 0 where masked out
//   backward_input  labels, mask, norm f64[>=1]  ->  logits [T,V] turned into (softmax - onehot(label)) *
//   norm[0] in place
//                   (0 where masked out), loss as above (not scaled)
//
// Float or double (token_loss like logits). Tokens with mask 0 take no part: their logits may be NaN and
// their labels anything. Any other label outside [0,V) throws base::Error before anything is written. The
// maximum is taken out first; exponentials are in the element type, their sum and the loss in double. The
// order of sums depends on T and V only.
#pragma once

#include "kernels/bind.h"
