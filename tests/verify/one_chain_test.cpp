// The programs of enqueued calls, run: every rank is one thread that makes all its exchanges in list order, messages
// are rendezvous without a buffer, and those of one call wait for nobody but their peers. The results are those of lanes,
// to the bit. A spread sample here, every interleaved layout with PLEAT_GRID=all.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "verify/grid.h"
#include "verify/verify_support.h"

namespace pleat::verify {
namespace {

void expect_same_bits(const config::Config& config, const model::Mesh& mesh,
                      const std::vector<model::Role>& roles, bool poison = false) {
  const LayoutRun lanes = run_layout(config, mesh, roles, {});
  RunOptions options;
  options.one_chain = true;
  options.poison = poison;
  const LayoutRun chain = run_layout(config, mesh, roles, options);
  const Comparison result = compare(lanes, chain, model::make_parameters(config));
  EXPECT_TRUE(result.bitwise) << "worst " << result.worst();
  EXPECT_EQ(result.verdict(0), "");
}

TEST(OneChain, InterleavedLayoutsHaveTheBitsOfLanes) {
  const std::vector<GridCase> all = grid();
  int layouts = 0, turn = 0;
  for (const GridCase& c : all) {
    if (c.mesh.vpp == 1 || !refusal(c).empty()) continue;
    if (turn++ % 13 != 5 && !whole_grid()) continue;
    SCOPED_TRACE(c.name());
    const config::Config config = grid_config(c, "float32");
    expect_same_bits(config, c.mesh, even_roles(config, c.mesh), layouts % 3 == 1);
    ++layouts;
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_GT(layouts, 4);
  if (whole_grid()) fmt::print("{} interleaved layouts on one chain: the bits of lanes\n", layouts);
}

// Without chunks too, where the order as built is that of a chain.
TEST(OneChain, PlainPipelinesHaveTheBitsOfLanes) {
  for (const int pp : {2, 4}) {
    const model::Mesh m = mesh_of({.tp = 2, .pp = pp});
    const config::Config c = small_model({"model.num_layers=4", "train.num_microbatches=4"});
    expect_same_bits(c, m, even_roles(c, m));
  }
}

// Four ranks, three chunks each, of which some compute nothing.
TEST(OneChain, ChunksWithoutLayers) {
  model::Mesh m;
  m.pp = 4, m.vpp = 3;
  const config::Config c = small_model({"model.num_layers=6", "train.num_microbatches=8"});
  expect_same_bits(c, m, even_roles(c, m), true);
}

}  // namespace
}  // namespace pleat::verify
