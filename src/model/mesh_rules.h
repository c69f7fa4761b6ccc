// What a layout asks of a model, as rules with names: every layout that breaks none of them runs and gives
// one rank's numbers; one that breaks some is refused with all of them, before anything is built.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "model/mesh.h"

namespace pleat::model {

struct LayoutFault {
  std::string rule;  // short and stable, for lists
  std::string text;  // with the numbers
};

// `config` must be resolved. How the ranks of the world divide is the layout's own business (src/layout).
std::vector<LayoutFault> layout_faults(const config::Config& config, const Mesh& mesh);

// Throws with every fault.
void require_layout(const config::Config& config, const Mesh& mesh);

}  // namespace pleat::model
