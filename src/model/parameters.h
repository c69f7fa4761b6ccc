// The parameter table of a model, in canonical order: embedding, layers bottom up (those of multi-token
// prediction last), final norm, head.
#pragma once

#include <vector>

#include "config/config.h"
#include "model/parameter.h"

namespace pleat::model {

std::vector<Parameter> make_parameters(const config::Config& config);

// Index of a parameter by name, -1 when the model has none of that name.
int find_parameter(const std::vector<Parameter>& table, const std::string& name);

struct ParameterCount {
  int64_t total = 0;   // every weight of the model once, without layers of multi-token prediction
  int64_t active = 0;  // of these per token: top-k of the routed experts
  int64_t mtp = 0;     // layers of multi-token prediction
};
ParameterCount count_parameters(const config::Config& config, const std::vector<Parameter>& table);

}  // namespace pleat::model
