#include "model/state.h"

#include <numeric>

#include "base/checked.h"
#include "base/error.h"
#include "tensor/block_codes.h"

namespace pleat::model {

using tensor::Dtype;

Dtype weight_format(const config::Config& c) {
  return c.model.dtype == "float64" ? Dtype::F64 : c.model.dtype == "bfloat16" ? Dtype::BF16 : Dtype::F32;
}

Dtype wide_format(const config::Config& c) {
  return weight_format(c) == Dtype::F64 ? Dtype::F64 : Dtype::F32;
}

Dtype gradient_format(const config::Config& c, const Parameter& p) {
  const ParameterClass of = p.tied_to.empty() ? p.parameter_class : ParameterClass::Embedding;
  const auto group = c.optimizer.groups.find(name_of(of));
  const bool own = group != c.optimizer.groups.end() && group->second.grad_dtype != "unset";
  const std::string& asked = own ? group->second.grad_dtype : c.optimizer.grad_dtype;
  return weight_format(c) == Dtype::BF16 && asked == "bfloat16" ? Dtype::BF16 : wide_format(c);
}

namespace {

double unit_of_rounding(Dtype format) {
  return format == Dtype::BF16 ? 0x1p-8 : format == Dtype::F32 ? 0x1p-24 : 0x1p-53;
}

void add_moment(Optimizer& to, const config::Config& c, StateSlot slot, const std::string& asked,
                bool codes) {
  const Dtype weight = weight_format(c), wide = wide_format(c);
  // Beside wide weights the two own keys alone decide.
  const bool follows = asked == "unset" && weight == Dtype::BF16;
  const std::string& name = weight == Dtype::F64 ? "" : follows ? c.optimizer.moment_dtype : asked;
  slot.format = name == "bfloat16" ? Dtype::BF16 : wide;
  slot.rounding = unit_of_rounding(slot.format);
  if (name != "block8" || !codes) {
    to.states.push_back(slot);
    return;
  }
  slot.format = Dtype::U8;
  slot.coding = coding_of(slot.name, slot.format);
  slot.unit = tensor::kCodeBlock;
  slot.rounding =
      slot.coding == Coding::Root ? tensor::RootCode::kSquareRounding : tensor::SignedCode::kRounding;
  to.states.push_back(slot);
  to.states.push_back({.name = slot.name + kScale,
                       .format = Dtype::F32,
                       .unit = tensor::kCodeBlock,
                       .span = tensor::kCodeBlock});
}

Optimizer make(const config::Config& c, bool codes) {
  Optimizer out;
  add_moment(out, c, {.name = ".moment1", .power = 1}, c.optimizer.moment1_dtype, codes);
  add_moment(out, c, {.name = ".moment2", .power = -0.5}, c.optimizer.moment2_dtype, codes);
  const bool coded = out.states.size() > 2;
  const bool narrow = weight_format(c) == Dtype::BF16, whole = c.optimizer.master == "float32";
  if (narrow && whole) out.states.push_back({.name = kRest, .format = Dtype::I16});
  if (narrow && c.optimizer.master == "float24") out.states.push_back({.name = kRest, .format = Dtype::U8});
  out.update = coded || (narrow && !whole) ? program::Op::adamw_coded
               : narrow                    ? program::Op::adamw_narrow
                                           : program::Op::adamw;
  if (c.optimizer.state_space == "host")
    for (StateSlot& s : out.states) s.space = program::Space::Pinned;
  return out;
}

}  // namespace

int64_t state_size(const StateSlot& slot, int64_t elements) { return base::ceil_div(elements, slot.span); }

std::vector<int64_t> state_shape(const StateSlot& slot, const std::vector<int64_t>& shape) {
  if (slot.span == 1) return shape;
  int64_t elements = 1;
  for (const int64_t extent : shape) elements = base::checked_mul(elements, extent, "elements of a state");
  return {state_size(slot, elements)};
}

std::string format_name(const StateSlot& slot) {
  return slot.coding != Coding::None ? "codes u8" : std::string(tensor::name_of(slot.format));
}

Optimizer optimizer_of(const config::Config& c) { return make(c, true); }

Optimizer optimizer_of(const config::Config& c, const Parameter& p) {
  return make(c, p.shape.size() >= 2 && !p.is_bias);
}

bool is_update(program::Op op) {
  return op == program::Op::adamw || op == program::Op::adamw_narrow || op == program::Op::adamw_coded;
}

int64_t unit_of(const Optimizer& optimizer) {
  int64_t unit = 1;
  for (const StateSlot& s : optimizer.states) unit = std::lcm(unit, s.unit);
  return unit;
}

bool is_number(const StateSlot& slot) {
  return slot.coding != Coding::None || (tensor::is_float(slot.format) && slot.span == 1);
}

float decoded(Coding coding, uint8_t code, float scale) {
  PLEAT_CHECK(coding != Coding::None);
  if (coding == Coding::Signed) return scale * tensor::SignedCode::kPlaces[code];
  const float root = scale * tensor::RootCode::kPlaces[code];
  return root * root;
}

Coding coding_of(std::string_view state, Dtype format) {
  if (format != Dtype::U8) return Coding::None;
  return state == ".moment1" ? Coding::Signed : state == ".moment2" ? Coding::Root : Coding::None;
}

}  // namespace pleat::model
