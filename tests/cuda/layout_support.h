// Layouts of up to four ranks, as a user would write them, and small models to run under them.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "model/mesh.h"

namespace pleat::testing {

using Words = std::vector<std::string>;

struct LayoutCase {
  std::string name;
  int ranks;
  Words sets;
};
const std::vector<LayoutCase>& layout_cases();

// Four layers, the first dense; eight experts and a shared one. Resolved, for device.kind = "cuda" unless
// `sets` say otherwise.
config::Config layout_config(const LayoutCase& layout, const std::string& dtype, const Words& sets = {});

struct Placed {
  model::Mesh mesh;
  std::vector<model::Role> roles;  // empty: the whole model on each rank
};
Placed place_of(const config::Config& config, int ranks);

}  // namespace pleat::testing
