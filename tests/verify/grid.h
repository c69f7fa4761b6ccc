// Every layout of at most eight ranks the axes allow, for the proof and for its sample in the normal tests.
#pragma once

#include <optional>
#include <string>

#include "model/mesh_rules.h"
#include "verify/compare.h"

namespace pleat::verify {

struct GridCase {
  model::Mesh mesh;
  int64_t num_microbatches = 1;
  bool pad = false, latent = false;
  std::string recompute;  // a module, or none
  std::string name() const;
};

std::vector<GridCase> grid();
// The same for parallel.context = "ring", cp 2 and 4; recomputed modules, ways to dispatch and to drop take
// turns.
std::vector<GridCase> ring_grid();
bool whole_grid();  // PLEAT_GRID=all: every layout, with counts printed
config::Config grid_config(const GridCase& c, const std::string& dtype,
                           const std::vector<std::string>& more = {});
// The same with the layout as keys, as a user would write it.
config::Config parallel_config(const GridCase& c, const std::string& dtype);
std::vector<model::Role> even_roles(const config::Config& config, const model::Mesh& mesh);
// The rules a case breaks, joined; empty when it should pass.
std::string refusal(const GridCase& c);
// One rank, dropping as the layout's ranks do.
LayoutRun reference_of(const GridCase& c, const config::Config& config, RunOptions options = {});

}  // namespace pleat::verify
