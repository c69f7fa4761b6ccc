// The optimizer as a table: one row for every state it keeps beside a weight, and the op that moves the weight.
//
// Whoever handles the optimizer's state reads these rows: its values in a program, the shares owners cut it into, the
// freeze pass, checkpoints and their resharding, memory by state, comparisons of layouts and their rounding bound.
// A new state is a row here and an argument of the update's kernel. Biases and norm weights may have fewer rows.
//
// Rows stand in the order of the update's arguments behind the weight (program/ops.def).
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "model/parameter.h"
#include "program/program.h"

namespace pleat::model {

// Behind the name of a narrow weight: what it leaves of its float (tensor/halves.h), which is how it begins. Every
// other state begins as zero.
inline constexpr const char* kRest = ".rest";

// Behind the name of a state in codes: the scales of its blocks.
inline constexpr const char* kScale = ".scale";

// What the numbers of a state are: themselves, or codes of eight bits (tensor/block_codes.h) whose scales are the slot
// behind it. Root: of the number's square root.
enum class Coding : uint8_t { None, Signed, Root };

struct StateSlot {
  std::string name;  // behind the name of the weight: ".moment1"
  tensor::Dtype format{};
  Coding coding = Coding::None;
  // Where it lies between two steps. A program as it is built has it on the device; pass/host_states moves it.
  program::Space space = program::Space::Device;
  int64_t unit = 1;  // elements that one owner holds together: shares are cut between units
  int64_t span =
      1;  // elements of the weight that one number of it belongs to; the last number may have fewer
  // The power with which a step of the weight takes it: rounding of the state by r changes the step by (1 + r)^power.
  // 0: the step takes its bits.
  double power = 0;
  double rounding = 0;  // r, relative to the number, of one that is not far below the largest of its block
};
// Of `elements` of a weight.
int64_t state_size(const StateSlot& slot, int64_t elements);
std::vector<int64_t> state_shape(const StateSlot& slot, const std::vector<int64_t>& shape);

std::string format_name(const StateSlot& slot);  // "f32", "codes u8"

struct Optimizer {
  program::Op update{};
  std::vector<StateSlot> states;
};
// Of matrices; and of one parameter: codes are for matrices, biases and norm weights keep wide moments.
Optimizer optimizer_of(const config::Config& config);
Optimizer optimizer_of(const config::Config& config, const Parameter& parameter);
bool is_update(program::Op op);
// The least elements of a parameter that every state can be cut at.
int64_t unit_of(const Optimizer& optimizer);
// A state that is a number for every element, whatever it is kept in: not a scale, not a rest.
bool is_number(const StateSlot& slot);
// A number in codes.
float decoded(Coding coding, uint8_t code, float scale);
// How a state of this name is coded where its element type says that it is.
Coding coding_of(std::string_view state, tensor::Dtype format);

// Of weights and activations; of what must not be narrow beside them: statistics, gradients and states that no key
// makes narrower; of a weight's gradient, which its class decides (of a tied weight, that of the embedding).
tensor::Dtype weight_format(const config::Config& config);
tensor::Dtype wide_format(const config::Config& config);
tensor::Dtype gradient_format(const config::Config& config, const Parameter& parameter);

}  // namespace pleat::model
