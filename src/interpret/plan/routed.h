// How many rows the routed values of a program have room for, beside what they are expected and able to need.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"

namespace pleat::interpret {

struct RoutedRows {
  bool prediction = false;  // layers of multi-token prediction, which stand behind all others
  int64_t expected = 0;     // rows of one microbatch under balanced routing: what simulate costs
  int64_t budget = 0;       // what plan reserves
  int64_t maximum = 0;      // what no routing can exceed
  std::set<int> layers;
  std::set<std::string> values;  // their names inside a layer
};

// Of all programs together, one entry per kind of layer and triple of row counts; by layer kind, then by
// rows.
std::vector<RoutedRows> routed_rows(std::span<const program::Program> programs, int64_t num_layers);

}  // namespace pleat::interpret
