// Token embedding.
//
//   forward          tokens i32[T], table [V,h]  ->  y [T,h]: y[t] = table[tokens[t]]
//   backward_weight  tokens i32[T], dy [T,h]     ->  dtable [V,h] (+)= sum of dy[t] over the tokens that use
//   the row
//
// Float or double. Overwriting dtable zeroes rows no token uses. A row's sum is taken over ascending t in the
// element type, starting from what is in the table when accumulating. A token outside [0,V) throws
// base::Error before anything is written. Arguments do not overlap.
#pragma once

#include "kernels/bind.h"
