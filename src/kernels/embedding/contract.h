// What the embedding asks of its arguments, and what it costs (kernels/contract.h). The maths is in
// embedding.h.
#pragma once

#include <algorithm>

#include "kernels/embedding/embedding_scratch.h"
#include "kernels/math/coords.h"
#include "program/limits.h"

namespace pleat::kernels {

inline void check(const signature::embedding::Forward<Arg>& args, const Invocation& call) {
  require_rank(args.tokens, 1);
  require_rank(args.table, 2);
  require_type(args.tokens, tensor::Dtype::I32);
  require_coords(args.coords, call);
  require_shape(args.y, {args.tokens.dim(0), args.table.dim(1)});
  require_same_type({&args.table, &args.y});
}
// Of the table only the rows that tokens use are read.
inline Work work(const signature::embedding::Forward<Arg>& args, const Invocation&) {
  return {0, moved_bytes({&args.tokens, 1}) + 2 * moved_bytes({&args.y, 1}), 1};
}

inline void check(const signature::embedding::BackwardWeight<Arg>& args, const Invocation& call) {
  require_rank(args.tokens, 1);
  require_rank(args.dtable, 2);
  require_type(args.tokens, tensor::Dtype::I32);
  require_coords(args.coords, call);
  require_shape(args.dy, {args.tokens.dim(0), args.dtable.dim(1)});
  require_float(args.dy);
  require_stored(args.dtable, args.dy);
  const int64_t limit = program::kMaxTokens + 1;
  if (args.tokens.dim(0) >= limit || args.dtable.dim(0) >= limit)
    refuse(args.tokens, "{} tokens and {} rows: needed less than {} of each", args.tokens.dim(0),
           args.dtable.dim(0), limit);
}
// Overwriting writes the whole table, adding at most a row for each token. A GPU sorts the tokens in one
// launch where they fit into it.
inline Work work(const signature::embedding::BackwardWeight<Arg>& args, const Invocation&) {
  const double table = moved_bytes({&args.dtable, 1}), rows = static_cast<double>(args.dtable.dim(0)),
               used = std::min(rows, static_cast<double>(args.tokens.dim(0)));
  const double part = args.dtable.into() == Into::Overwrite || rows == 0 ? 1 : used / rows;
  return {0, moved_bytes({&args.tokens, 1}) + moved_bytes({&args.dy, 1}) + table * part, 3};
}

inline int64_t scratch_bytes(const signature::embedding::Forward<Arg>&, const Invocation&, const Gpu&) {
  return 0;
}
inline int64_t scratch_bytes(const signature::embedding::BackwardWeight<Arg>& args, const Invocation&,
                             const Gpu&) {
  return EmbeddingScratch(args.tokens.dim(0), args.dtable.dim(0), args.dtable.dim(1)).total;
}

}  // namespace pleat::kernels
