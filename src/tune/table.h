// The table of families: which exist, what decides them, and their choices in a model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/mesh.h"
#include "tune/choice.h"

namespace pleat::tune {

// What choices depend on beside the configuration.
struct Place {
  std::vector<int> layers;  // of the model, in the order they are taken
  model::Mesh mesh;
  std::vector<std::string> free;  // keys that the user lets go by name
};

struct FamilyRow {
  std::string_view name;
  std::vector<std::string_view> keys;  // one of them set by the user closes the family
  std::vector<std::string_view>
      defaults;  // keys that go back to their defaults where the user lets it go; none: they stay as a start
  bool per_microbatch = false, fine = false;
  // A key that the user set closes only those choices that set it. None of them has `parts`.
  bool by_choice = false;
  // Keys that the family leaves alone unless the user lets them go by name.
  std::vector<std::string_view> on_request = {};
  // Those that make sense here, cheapest first; none where the family has no place in this model. `parts` count from 0.
  std::vector<Choice> (*choices)(const config::Config& resolved, const Place& place) = nullptr;
};

// In order of cost: what costs nothing first.
const std::vector<FamilyRow>& family_table();

// Whether a key is the other way to say what `key` says: optimizer.moment_dtype for that of each moment.
bool stands_for(std::string_view other, std::string_view key);

}  // namespace pleat::tune
