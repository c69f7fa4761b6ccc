// Token embedding.
//
//   forward          tokens i32[T], table [V,h]  ->  y [T,h]: y[t] = table[tokens[t]]
//   backward_weight  tokens i32[T], dy [T,h]     ->  dtable [V,h] (+)= sum of dy[t] over the tokens that use
//   the row
//
// With coords i64[kNumGroups] the table is one piece of the vocabulary's rows, those from c V on, c =
// coords[attr group]: tokens of other pieces give zero rows and no gradient.
//
// With the attribute `padding` the row of that token gets no gradient: backward_weight passes its tokens
// over, as though they were not there.
//
// Float or double. Overwriting dtable zeroes rows no token uses. A row's sum is taken over ascending t in the
// element type, starting from what is in the table when accumulating: a row has the same bits in a piece as
// in the whole table. A token outside [0,V), or a negative one where the table is a piece, throws base::Error
// before anything is written. Arguments do not overlap.
#pragma once

#include "kernels/bind.h"
#include "kernels/invocation.h"

namespace pleat::kernels {

// The token whose row gets no gradient; -1, which no token is, where there is none.
inline int64_t padding_token(const Invocation& call) {
  for (const program::Attr& a : *call.attrs)
    if (a.key == "padding") return static_cast<int64_t>(a.number);
  return -1;
}

}  // namespace pleat::kernels
