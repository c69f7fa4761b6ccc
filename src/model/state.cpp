#include "model/state.h"

#include <numeric>

namespace pleat::model {

using tensor::Dtype;

Dtype weight_format(const config::Config& c) {
  return c.model.dtype == "float64" ? Dtype::F64 : c.model.dtype == "bfloat16" ? Dtype::BF16 : Dtype::F32;
}

Dtype wide_format(const config::Config& c) {
  return weight_format(c) == Dtype::F64 ? Dtype::F64 : Dtype::F32;
}

Dtype gradient_format(const config::Config& c) {
  const bool narrow = weight_format(c) == Dtype::BF16 && c.optimizer.grad_dtype == "bfloat16";
  return narrow ? Dtype::BF16 : wide_format(c);
}

Optimizer optimizer_of(const config::Config& c) {
  const Dtype weight = weight_format(c), wide = wide_format(c);
  const auto moment = [&](const std::string& asked) {
    // Beside wide weights the two own keys alone decide.
    const bool follows = asked == "unset" && weight == Dtype::BF16;
    const std::string& name = follows ? c.optimizer.moment_dtype : asked;
    return name == "bfloat16" && weight != Dtype::F64 ? Dtype::BF16 : wide;
  };
  Optimizer out;
  out.update = program::Op::adamw;
  out.states.push_back({.name = ".moment1", .format = moment(c.optimizer.moment1_dtype), .power = 1});
  out.states.push_back({.name = ".moment2", .format = moment(c.optimizer.moment2_dtype), .power = -0.5});
  if (weight != wide) {
    out.update = program::Op::adamw_narrow;
    out.states.push_back({.name = kRest, .format = Dtype::I16});
  }
  return out;
}

int64_t unit_of(const Optimizer& optimizer) {
  int64_t unit = 1;
  for (const StateSlot& s : optimizer.states) unit = std::lcm(unit, s.unit);
  return unit;
}

}  // namespace pleat::model
