#include "schedule/parts.h"

#include <algorithm>

#include "layout/from_config.h"
#include "schedule/build.h"
#include "schedule/pass/freeze.h"
#include "schedule/ranks.h"

namespace pleat::schedule {

std::vector<program::Program> parts_of_ranks(config::Config c) {
  c.parallel.optimizer_group = 0;  // of more ranks than these
  const layout::Layout ranks(layout::sizes_of(c, layout::least_ranks(c)));
  const model::Mesh mesh = mesh_of(c, ranks);
  // With two, forwards of all stages but the last one run ahead of their backward, as they do with more.
  c.train.num_microbatches =
      mesh.dp * (mesh.vpp > 1   ? mesh.pp
                 : mesh.pp == 1 ? 1
                                : std::min<int64_t>(2, c.train.num_microbatches / mesh.dp));
  if (c.train.order == "loop") c.train.order = "1f1b";
  const std::vector<model::Parameter> table = model::make_parameters(c);
  std::vector<program::Program> parts;
  for (const model::Role& role : roles_of(c)) {
    parts.push_back(build_training_step(c, table, {model::RoutingUse::Choose, mesh, role}));
    if (!c.optimizer.freeze.empty()) parts.back() = freeze(std::move(parts.back()), c);
  }
  return parts;
}

}  // namespace pleat::schedule
