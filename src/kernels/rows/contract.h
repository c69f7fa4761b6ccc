// What the kernels of rows ask of their arguments, and what they cost (kernels/contract.h). rows.h says what
// they do.
#pragma once

#include <array>

#include "kernels/cuda/scratch.h"

namespace pleat::kernels {

// ---- add_rows

inline void check(const signature::add_rows::Forward<Arg>& args, const Invocation&) {
  require_rank(args.x, 2);
  const int64_t rows = args.x.dim(0), width = args.x.dim(1);
  require_shape(args.bias, {width});
  for (const Arg* like : {&args.shared, &args.residual, &args.y}) require_shape(*like, {rows, width});
  require_same_type({&args.x, &args.bias, &args.shared, &args.residual, &args.y});
}
inline Work work(const signature::add_rows::Forward<Arg>&, const Invocation& call) { return moves(call); }

inline void check(const signature::add_rows::BackwardWeight<Arg>& args, const Invocation&) {
  require_rank(args.dy, 2);
  require_float(args.dy);
  require_shape(args.dbias, {args.dy.dim(1)});
  require_stored(args.dbias, args.dy);
}
inline Work work(const signature::add_rows::BackwardWeight<Arg>&, const Invocation& call) {
  return moves(call, 2);
}
inline int64_t scratch_bytes(const signature::add_rows::BackwardWeight<Arg>& args, const Invocation&,
                             const Gpu&) {
  return column_sum_bytes(args.dy.dim(0), args.dy.dim(1));
}

// ---- take_rows: both phases are one function.

template <class Args>
concept TakeRowsArgs =
    AnyOf<Args, signature::take_rows::Forward<Arg>, signature::take_rows::BackwardInput<Arg>>;
template <TakeRowsArgs Args>
void check(const Args& args, const Invocation&) {
  using tensor::Dtype;
  if (args.x.shape.size() != 1) require_rank(args.x, 2);
  require_rank(args.y, args.x.shape.size());
  const int64_t rows = args.y.dim(0);
  if (args.x.shape.size() == 2) require_shape(args.y, {rows, args.x.dim(1)});
  require_type(args.y, args.x.dtype);
  require_shape(args.index, {rows}, Dtype::I32);
  require_type(args.offsets, Dtype::I32);
  require_rank(args.offsets, 1);
  if (args.offsets.present && args.offsets.dim(0) < 1)
    refuse(args.offsets, "argument 'offsets' is empty, needed 1 element or more");
}
template <TakeRowsArgs Args>
Work work(const Args&, const Invocation& call) {
  return moves(call);
}

// ---- columns

inline void check(const signature::columns::Forward<Arg>& args, const Invocation& call) {
  require_rank(args.x, 2);
  require_rank(args.y, 2);
  require_shape(args.y, {args.x.dim(0), args.y.dim(1)}, args.x.dtype);
  const int64_t begin = call.integer("begin"), end = begin + args.y.dim(1);
  if (begin < 0 || end > args.x.dim(1))
    refuse(args.x, "columns {} to {} are outside the {} of 'x'", begin, end, args.x.dim(1));
}
inline Work work(const signature::columns::Forward<Arg>&, const Invocation& call) { return moves(call); }

inline void check(const signature::columns::BackwardInput<Arg>& args, const Invocation&) {
  require_rank(args.a, 2);
  require_rank(args.b, 2);
  require_shape(args.b, {args.a.dim(0), args.b.dim(1)}, args.a.dtype);
  require_shape(args.y, {args.a.dim(0), args.a.dim(1) + args.b.dim(1)}, args.a.dtype);
}
// One launch for a, one for b.
inline Work work(const signature::columns::BackwardInput<Arg>&, const Invocation& call) {
  return moves(call, 2);
}

// ---- fill_zero takes anything.

template <class Args>
concept FillZeroArgs =
    AnyOf<Args, signature::fill_zero::Forward<Arg>, signature::fill_zero::BackwardInput<Arg>,
          signature::fill_zero::BackwardWeight<Arg>, signature::fill_zero::Update<Arg>>;
template <FillZeroArgs Args>
void check(const Args&, const Invocation&) {}
template <FillZeroArgs Args>
Work work(const Args&, const Invocation& call) {
  return moves(call);
}

// ---- narrow: all phases are one function.

template <class Args>
concept NarrowArgs = AnyOf<Args, signature::narrow::Forward<Arg>, signature::narrow::BackwardInput<Arg>,
                           signature::narrow::BackwardWeight<Arg>>;
template <NarrowArgs Args>
void check(const Args& args, const Invocation&) {
  require_type(args.x, tensor::Dtype::F32);
}
template <NarrowArgs Args>
Work work(const Args&, const Invocation& call) {
  return moves(call);
}

// ---- split_heads, merge_heads: both phases of each are one function.

// Rows of a | b | c in attr parts, each of which has its part of the three.
struct HeadWidths {
  std::array<int64_t, 3> widths;
  int64_t parts, whole;
  explicit HeadWidths(const Invocation& call)
      : widths{call.integer("a"), call.integer("b"), call.integer("c")},
        parts(call.integer("parts")),
        whole(widths[0] + widths[1] + widths[2]) {}
};

// joined [T, a+b+c], cut [n, T, (a+b+c)/n] or the same declared [n T, (a+b+c)/n].
inline void require_heads(const Arg& joined, const Arg& cut, const Invocation& call) {
  const HeadWidths h(call);
  if (h.parts < 1) refuse(joined, "attribute 'parts' is {}, needed 1 or more", h.parts);
  constexpr std::string_view names[] = {"a", "b", "c"};
  for (size_t i = 0; i < 3; ++i)
    if (h.widths[i] < 0 || h.widths[i] % h.parts != 0)
      refuse(joined, "attribute '{}' is {}, needed a multiple of the {} parts", names[i], h.widths[i],
             h.parts);
  require_rank(joined, 2);
  const int64_t rows = joined.dim(0), narrow = h.whole / h.parts;
  require_shape(joined, {rows, h.whole});
  if (cut.shape.size() == 2)
    require_shape(cut, {h.parts * rows, narrow});
  else
    require_shape(cut, {h.parts, rows, narrow});
  require_type(cut, joined.dtype);
}

template <class Args>
concept SplitHeadsArgs =
    AnyOf<Args, signature::split_heads::Forward<Arg>, signature::split_heads::BackwardInput<Arg>>;
template <SplitHeadsArgs Args>
void check(const Args& args, const Invocation& call) {
  require_heads(args.x, args.y, call);
}
template <SplitHeadsArgs Args>
Work work(const Args&, const Invocation& call) {
  return moves(call);
}

template <class Args>
concept MergeHeadsArgs =
    AnyOf<Args, signature::merge_heads::Forward<Arg>, signature::merge_heads::BackwardInput<Arg>>;
template <MergeHeadsArgs Args>
void check(const Args& args, const Invocation& call) {
  require_heads(args.y, args.x, call);
}
template <MergeHeadsArgs Args>
Work work(const Args&, const Invocation& call) {
  return moves(call);
}

// ---- Scratch: these take none.

template <AnyOf<signature::add_rows::Forward<Arg>, signature::take_rows::Forward<Arg>,
                signature::take_rows::BackwardInput<Arg>, signature::columns::Forward<Arg>,
                signature::columns::BackwardInput<Arg>, signature::fill_zero::Forward<Arg>,
                signature::fill_zero::BackwardInput<Arg>, signature::fill_zero::BackwardWeight<Arg>,
                signature::fill_zero::Update<Arg>, signature::narrow::Forward<Arg>,
                signature::narrow::BackwardInput<Arg>, signature::narrow::BackwardWeight<Arg>,
                signature::split_heads::Forward<Arg>, signature::split_heads::BackwardInput<Arg>,
                signature::merge_heads::Forward<Arg>, signature::merge_heads::BackwardInput<Arg>>
              Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
