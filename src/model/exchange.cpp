#include "model/exchange.h"

#include "model/words.h"

namespace pleat::model {
namespace {

program::ValueId with_rows(Decoder& d, ValueId like, int64_t rows, const std::string& what) {
  const program::Value& v = d.b.program().values[static_cast<size_t>(like)];
  std::vector<int64_t> shape = v.shape;
  shape[0] = rows;
  const tensor::Dtype dtype = v.dtype;
  const program::Owner owner = v.owner;
  return d.activation(what, dtype, std::move(shape), owner);
}

void exchange_at(Decoder& d, Op op, Phase phase, Group group, ValueId x, ValueId y, int part) {
  const program::Place here = d.b.place();
  const int lane = d.b.lane_idx();
  program::Place there = here;
  there.part = part;
  d.b.at(there, lane);
  d.b.exchange(op, phase, group, {r(x), w(y)});
  d.b.at(here, lane);
}

int64_t rows_of(const Decoder& d, ValueId x) { return d.b.program().values[static_cast<size_t>(x)].shape[0]; }

}  // namespace

ValueId gather_rows(Decoder& d, Op op, Phase phase, Group group, ValueId x, const std::string& what,
                    int part) {
  const int64_t n = d.mesh.size(group);
  if (n == 1) return x;
  const ValueId y = with_rows(d, x, n * rows_of(d, x), what);
  exchange_at(d, op, phase, group, x, y, part);
  return y;
}

ValueId scatter_rows(Decoder& d, Op op, Phase phase, Group group, ValueId x, const std::string& what,
                     int part) {
  const int64_t n = d.mesh.size(group);
  if (n == 1) return x;
  const ValueId y = with_rows(d, x, rows_of(d, x) / n, what);
  exchange_at(d, op, phase, group, x, y, part);
  return y;
}

ValueId project_rows(Decoder& d, const RowParallel& ops, ValueId x, ValueId weight, ValueId bias,
                     ValueId residual, const std::string& y_name) {
  const int64_t width = rows_of(d, weight);
  if (d.mesh.tp == 1) {
    const ValueId y = d.activation(y_name, {d.num_tokens, width});
    d.b.forward(ops.linear, {r(x), r(weight), r(bias), r(residual), w(y)});
    return y;
  }
  const bool add = bias != kNoValue || residual != kNoValue;
  const ValueId partial = d.activation(y_name + "_partial", {d.attention_tokens, width});
  d.b.forward(ops.linear, {r(x), r(weight), none(), none(), w(partial)});
  const ValueId sum =
      scatter_rows(d, ops.scatter, Phase::Forward, Group::Tensor, partial, add ? y_name + "_sum" : y_name);
  if (!add) return sum;
  const ValueId y = d.activation(y_name, {d.num_tokens, width});
  d.b.forward(ops.add, {r(sum), r(bias), none(), r(residual), w(y)});
  return y;
}

ValueId project_rows_backward(Decoder& d, const RowParallel& ops, Op gather, ValueId dy, ValueId x,
                              ValueId weight, ValueId d_weight, ValueId d_bias, ValueId dx,
                              const std::string& what) {
  const auto acc = [&](ValueId v) { return v == kNoValue ? none() : d.b.acc(v); };
  const bool alone = d.mesh.tp == 1;
  const ValueId all = gather_rows(d, gather, Phase::BackwardInput, Group::Tensor, dy, what + "_all");
  d.b.dgrad(ops.linear, {r(all), r(weight), w(dx)});
  d.b.wgrad(ops.linear, {r(all), r(x), acc(d_weight), alone ? acc(d_bias) : none()});
  // Every tensor rank would count all rows: each counts its own, and the sum over ranks is whole.
  if (!alone && d_bias != kNoValue) d.b.wgrad(ops.add, {r(dy), acc(d_bias)});
  return dx;
}

}  // namespace pleat::model
