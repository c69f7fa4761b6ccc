// --machine, --costs and --curves: what a step is simulated on.
#pragma once

#include <string>
#include <vector>

#include "schedule/simulated_step.h"

namespace CLI {
class App;
}

namespace pleat::apps {

struct MachineArgument {
  std::string machine, curves;
  std::vector<std::string> costs;
  bool alone = false;

  schedule::Ground ground() const;
};
void add_machine_argument(CLI::App& command, MachineArgument& argument);

}  // namespace pleat::apps
