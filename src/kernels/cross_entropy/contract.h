// What the kernels of the loss ask of their arguments, and what they cost (kernels/contract.h). The maths is in
// cross_entropy.h.
#pragma once

#include "kernels/contract.h"
#include "kernels/math/coords.h"

namespace pleat::kernels {

// Numbers of a row and a piece of the vocabulary: maximum, sum of exponentials, the label's logit.
constexpr int64_t kNumVocabStats = 3;

// ---- What rows of these kernels share.

// Of the rows, those the mask leaves out may have any label; the loss is {sum, rows that count}.
template <class Args>
void require_rows_of_loss(const Args& args, int64_t rows) {
  using tensor::Dtype;
  if constexpr (requires { args.labels; }) require_shape(args.labels, {rows}, Dtype::I32);
  require_shape(args.mask, {rows}, Dtype::U8);
  if constexpr (requires { args.loss; }) require_shape(args.loss, {2}, Dtype::F64);
  if constexpr (requires { args.norm; }) {
    require_type(args.norm, Dtype::F64);
    if (args.norm.size() < 1) refuse(args.norm, "argument 'norm' is empty, needed 1 element or more");
  }
}

template <class Args>
int64_t require_logits(const Args& args) {
  require_rank(args.logits, 2);
  require_float(args.logits);
  require_rows_of_loss(args, args.logits.dim(0));
  return args.logits.dim(0);
}

// [ranks, rows, 3], or the same declared [ranks * rows, 3].
inline void require_all_stats(const Arg& all_stats, int64_t rows) {
  require_type(all_stats, tensor::Dtype::F64);
  const auto shape = all_stats.shape;
  const bool fits = shape.size() == 3 ? shape[1] == rows && shape[2] == kNumVocabStats
                    : shape.size() == 2
                        ? (rows == 0 ? shape[0] == 0 : shape[0] % rows == 0) && shape[1] == kNumVocabStats
                        : false;
  if (!fits || (rows > 0 && all_stats.size() == 0))
    refuse(all_stats, "argument '{}' is {}, needed [ranks, {}, {}]", all_stats.name, shape_text(shape), rows,
           kNumVocabStats);
}

inline int64_t ranks_of_stats(const Arg& all_stats, int64_t rows) {
  return rows == 0 ? 0 : all_stats.size() / (rows * kNumVocabStats);
}

// ---- cross_entropy

inline void check(const signature::cross_entropy::Forward<Arg>& args, const Invocation&) {
  const int64_t rows = require_logits(args);
  require_shape(args.token_loss, {rows});
  require_stored(args.token_loss, args.logits);
}
inline Work work(const signature::cross_entropy::Forward<Arg>&, const Invocation& call) {
  return moves(call, 2);
}

inline void check(const signature::cross_entropy::BackwardInput<Arg>& args, const Invocation&) {
  require_logits(args);
}
inline Work work(const signature::cross_entropy::BackwardInput<Arg>&, const Invocation& call) {
  return moves(call, 2);
}

// ---- A vocabulary in pieces.

inline void check(const signature::vocab_stats::Forward<Arg>& args, const Invocation& call) {
  const int64_t rows = require_logits(args);
  require_coords(args.coords, call);
  require_shape(args.stats, {rows, kNumVocabStats}, tensor::Dtype::F64);
  call.attr("vocabulary");
}
inline Work work(const signature::vocab_stats::Forward<Arg>&, const Invocation& call) { return moves(call); }

inline void check(const signature::vocab_loss::Forward<Arg>& args, const Invocation&) {
  require_rank(args.mask, 1);
  const int64_t rows = args.mask.dim(0);
  require_rows_of_loss(args, rows);
  require_all_stats(args.all_stats, rows);
  require_shape(args.token_loss, {rows});
  require_float(args.token_loss);
}
inline Work work(const signature::vocab_loss::Forward<Arg>&, const Invocation& call) {
  return moves(call, 2);
}

inline void check(const signature::vocab_loss::BackwardInput<Arg>& args, const Invocation& call) {
  require_all_stats(args.all_stats, require_logits(args));
  require_coords(args.coords, call);
  call.attr("vocabulary");
}
inline Work work(const signature::vocab_loss::BackwardInput<Arg>&, const Invocation& call) {
  return moves(call, 2);
}

// ---- Scratch: the loss of every row, f64, which are summed in the order of rows.

inline int64_t row_loss_bytes(int64_t rows) { return rows * 8; }
template <AnyOf<signature::cross_entropy::Forward<Arg>, signature::cross_entropy::BackwardInput<Arg>,
                signature::vocab_loss::Forward<Arg>, signature::vocab_loss::BackwardInput<Arg>>
              Args>
int64_t scratch_bytes(const Args& args, const Invocation&, const Gpu&) {
  return row_loss_bytes(args.mask.dim(0));
}
inline int64_t scratch_bytes(const signature::vocab_stats::Forward<Arg>&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
