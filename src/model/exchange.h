// Rows moved between ranks inside a block. Each function returns its input where the group is one rank, so
// that a block reads the same for every layout and a program for one rank holds no trace of the others.
#pragma once

#include <string>

#include "model/decoder.h"

namespace pleat::model {

// All ranks' rows, rank after rank.
ValueId gather_rows(Decoder& d, program::Op op, program::Phase phase, program::Group group, ValueId x,
                    const std::string& what, int part = 0);
// This rank's rows of the sum over ranks.
ValueId scatter_rows(Decoder& d, program::Op op, program::Phase phase, program::Group group, ValueId x,
                     const std::string& what, int part = 0);

// y = x w^T + bias + residual for a weight whose columns are cut over the tensor ranks: x has the rows of
// attention_tokens, y and residual those this rank owns. One fused stage where there is one tensor rank.
struct RowParallel {
  program::Op linear, scatter, add;
};
inline constexpr RowParallel kAttentionOut = {program::Op::attn_out, program::Op::attn_scatter,
                                              program::Op::attn_add};
ValueId project_rows(Decoder& d, const RowParallel& ops, ValueId x, ValueId weight, ValueId bias,
                     ValueId residual, const std::string& y_name);
// Gradients of project_rows: returns dx; adds to d_weight and d_bias.
ValueId project_rows_backward(Decoder& d, const RowParallel& ops, program::Op gather, ValueId dy, ValueId x,
                              ValueId weight, ValueId d_weight, ValueId d_bias, ValueId dx,
                              const std::string& what);

}  // namespace pleat::model
