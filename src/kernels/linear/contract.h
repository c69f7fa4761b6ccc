// What the linear layer asks of its arguments, and what it costs (kernels/contract.h). The maths is in
// linear.h.
#pragma once

#include "kernels/cuda/scratch.h"

namespace pleat::kernels {

inline void check(const signature::linear::Forward<Arg>& args, const Invocation&) {
  require_rank(args.x, 2);
  require_rank(args.w, 2);
  const int64_t rows = args.x.dim(0), in = args.x.dim(1), out = args.w.dim(0);
  require_shape(args.w, {out, in});
  require_shape(args.bias, {out});
  require_shape(args.residual, {rows, out});
  require_shape(args.y, {rows, out});
  require_same_type({&args.x, &args.w, &args.bias, &args.residual, &args.y});
}
inline Work work(const signature::linear::Forward<Arg>& args, const Invocation& call) {
  return multiplies(call, product_flops(args.x.dim(0), args.w));
}
inline int64_t scratch_bytes(const signature::linear::Forward<Arg>&, const Invocation&, const Gpu&) {
  return kMatmulWorkspace;
}

inline void check(const signature::linear::BackwardInput<Arg>& args, const Invocation&) {
  require_rank(args.dy, 2);
  require_rank(args.w, 2);
  const int64_t rows = args.dy.dim(0), out = args.dy.dim(1), in = args.w.dim(1);
  require_shape(args.w, {out, in});
  require_shape(args.dx, {rows, in});
  require_same_type({&args.dy, &args.w, &args.dx});
}
inline Work work(const signature::linear::BackwardInput<Arg>& args, const Invocation& call) {
  return multiplies(call, product_flops(args.dy.dim(0), args.w));
}
inline int64_t scratch_bytes(const signature::linear::BackwardInput<Arg>&, const Invocation&, const Gpu&) {
  return kMatmulWorkspace;
}

inline void check(const signature::linear::BackwardWeight<Arg>& args, const Invocation&) {
  require_rank(args.dy, 2);
  require_rank(args.x, 2);
  const int64_t rows = args.dy.dim(0), out = args.dy.dim(1), in = args.x.dim(1);
  require_shape(args.x, {rows, in});
  require_shape(args.dw, {out, in});
  require_shape(args.dbias, {out});
  require_same_type({&args.dy, &args.x});
  require_stored(args.dw, args.dy);
  require_stored(args.dbias, args.dy);
}
inline Work work(const signature::linear::BackwardWeight<Arg>& args, const Invocation& call) {
  return multiplies(call, product_flops(args.dy.dim(0), args.dw), args.dbias.present ? 3 : 1);
}
// The gradient of a bias is summed in parts of as many rows, f32, once the product is done.
constexpr int kBiasPartRows = 128;
inline int64_t bias_part_bytes(const Arg& dy) {
  return base::ceil_div(dy.dim(0), kBiasPartRows) * dy.dim(1) * 4;
}
inline int64_t scratch_bytes(const signature::linear::BackwardWeight<Arg>& args, const Invocation&,
                             const Gpu&) {
  return std::max(kMatmulWorkspace, args.dbias.present ? bias_part_bytes(args.dy) : 0);
}

}  // namespace pleat::kernels
