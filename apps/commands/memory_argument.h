// --device-memory and --host-memory: a machine's memory as a run may have it.
#pragma once

#include <string>

#include "cost/machine.h"

namespace CLI {
class App;
}

namespace pleat::apps {

struct MemoryArgument {
  std::string device, host;

  bool given() const { return !device.empty() || !host.empty(); }
  // In place of what the machine's file says. Throws where the machine has no such memory.
  void apply(cost::Machine& machine) const;
};
void add_memory_argument(CLI::App& command, MemoryArgument& argument);

}  // namespace pleat::apps
