#include "schedule/parts.h"

#include "layout/from_config.h"
#include "schedule/build.h"
#include "schedule/pass/freeze.h"
#include "schedule/ranks.h"

namespace pleat::schedule {

std::vector<program::Program> parts_of_ranks(config::Config c) {
  c.parallel.optimizer_group = 0;  // of more ranks than these
  const layout::Layout ranks(layout::sizes_of(c, layout::least_ranks(c)));
  const model::Mesh mesh = mesh_of(c, ranks);
  c.train.num_microbatches = mesh.dp * (mesh.vpp > 1 ? mesh.pp : 1);
  const std::vector<model::Parameter> table = model::make_parameters(c);
  std::vector<program::Program> parts;
  for (const model::Role& role : roles_of(c)) {
    parts.push_back(build_training_step(c, table, {model::RoutingUse::Choose, mesh, role}));
    if (!c.optimizer.freeze.empty()) parts.back() = freeze(std::move(parts.back()), c);
  }
  return parts;
}

}  // namespace pleat::schedule
