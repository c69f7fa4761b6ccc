#include "machine_argument.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "config/flat_toml.h"
#include "cost/machine_file.h"
#include "cost/measured_on.h"

namespace pleat::apps {

schedule::Ground MachineArgument::ground() const {
  std::optional<cost::CostFile> joined;
  if (!costs.empty()) {
    std::vector<cost::CostFile> files;
    for (const std::string& path : costs) files.push_back(cost::read_costs(path));
    joined = cost::join(files);
  }
  const cost::Machine on = !machine.empty() ? cost::find_machine(machine)
                           : joined         ? cost::default_machine(joined->machine)
                                            : cost::find_machine(cost::kDefaultGpu);
  std::optional<cost::Curves> own;
  if (!curves.empty()) own = cost::curves_from_toml(config::toml_file_text(curves), curves);
  schedule::Ground ground = schedule::make_ground(on, std::move(joined), std::move(own));
  ground.contention = !alone;
  return ground;
}

void add_machine_argument(CLI::App& command, MachineArgument& a) {
  command.add_option("--machine", a.machine,
                     fmt::format("Machine to simulate: a name (`pleat machines` lists them) or a .toml file "
                                 "(default {}; with --costs the one with their GPU, or {})",
                                 cost::kDefaultGpu, cost::kDefaultCpu));
  command
      .add_option(
          "--costs", a.costs,
          "Measured stages of that machine, as `pleat bench costs` writes them; those of another GPU are "
          "carried over by formula (repeatable)")
      ->allow_extra_args(false);
  command.add_option(
      "--curves", a.curves,
      "What is reached of its rates where nothing was measured, as `pleat bench fit` writes it");
  command.add_flag("--alone", a.alone,
                   "Stages that run at the same time do not slow each other; compute lanes take turns");
}

}  // namespace pleat::apps
