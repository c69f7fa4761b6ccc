// The optimizer as a table: one row for every state it keeps beside a weight, and the op that moves the weight.
//
// Whoever handles the optimizer's state reads these rows: its values in a program, the shares owners cut it into, the
// freeze pass, checkpoints and their resharding, memory by state, comparisons of layouts and their rounding bound.
// A new state is a row here and an argument of the update's kernel.
//
// Rows stand in the order of the update's arguments behind the weight (program/ops.def).
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "program/program.h"

namespace pleat::model {

// Behind the name of a narrow weight: what it leaves of its float (tensor/halves.h), which is how it begins. Every
// other state begins as zero.
inline constexpr const char* kRest = ".rest";

struct StateSlot {
  std::string name;  // behind the name of the weight: ".moment1"
  tensor::Dtype format{};
  program::Space space = program::Space::Device;
  int64_t unit = 1;  // elements that one owner holds together: shares are cut between units
  // The power with which a step of the weight takes it: rounding of the state by r changes the step by (1 + r)^power.
  // 0: the step takes its bits.
  double power = 0;
};

struct Optimizer {
  program::Op update{};
  std::vector<StateSlot> states;
};
Optimizer optimizer_of(const config::Config& config);
// The least elements of a parameter that every state can be cut at.
int64_t unit_of(const Optimizer& optimizer);

// Of weights and activations; of what must not be narrow beside them: statistics, gradients and states that no key
// makes narrower; of the gradients of weights.
tensor::Dtype weight_format(const config::Config& config);
tensor::Dtype wide_format(const config::Config& config);
tensor::Dtype gradient_format(const config::Config& config);

}  // namespace pleat::model
