// The ways rows reach experts on other ranks: counted, padded, through windows. All give the same bits, and those of
// gathered tokens.
#include <gtest/gtest.h>

#include "model/parameters.h"
#include "verify/grid.h"
#include "verify/verify_support.h"

namespace pleat::verify {
namespace {

struct Case {
  const char* name;
  model::Mesh mesh;
  std::vector<std::string> sets;
};

std::vector<Case> cases() {
  return {
      {"EP2", mesh_of({.dp = 2, .ep = 2}), {}},
      {"EP4", mesh_of({.dp = 4, .ep = 4}), {}},
      {"EP2 ETP2", mesh_of({.dp = 4, .ep = 2, .etp = 2}), {}},
      {"ETP2", mesh_of({.dp = 2, .etp = 2}), {}},
      {"EP4 over TP2", mesh_of({.tp = 2, .dp = 2, .ep = 4}), {}},
      {"EP2 EDP2", mesh_of({.dp = 4, .ep = 2}), {}},
      {"EP2 with recompute", mesh_of({.dp = 2, .ep = 2}), {"recompute.modules=[\"experts\"]"}},
      {"EP2 with layers recomputed", mesh_of({.dp = 2, .ep = 2}), {"recompute.modules=[\"layer\"]"}},
      {"EP4 padded experts",
       mesh_of({.dp = 4, .ep = 4}),
       {"moe.capacity_factor=1.0", "moe.pad_to_capacity=true"}},
      {"EP4 dropping", mesh_of({.dp = 4, .ep = 4}), {"moe.capacity_factor=1.0"}},
      {"EP4 trimmed",
       mesh_of({.dp = 4, .ep = 4}),
       {"parallel.ep=4", "moe.token_budget=1.1", "moe.overflow=\"drop\""}},
      {"EP2 run again",
       mesh_of({.dp = 2, .ep = 2}),
       {"parallel.ep=2", "moe.token_budget=1.05", "moe.overflow=\"rerun\""}},
      {"EP2 in a pipeline", mesh_of({.dp = 2, .pp = 2, .ep = 2}), {}},
  };
}

config::Config config_of(const Case& c, const std::string& dtype) {
  GridCase grid;
  grid.mesh = c.mesh;
  grid.num_microbatches = 4;
  return grid_config(grid, dtype, c.sets);
}

TEST(Exchange, EveryWayHasTheSameBits) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    for (const char* dtype : {"float32", "float64"}) {
      if (std::string(dtype) == "float64" && c.mesh.etp == 1) continue;  // other numbers, the same code
      const config::Config config = config_of(c, dtype);
      const auto run = [&](model::RowExchange exchange, RunOptions options = {}) {
        model::Mesh mesh = c.mesh;
        mesh.exchange = exchange;
        options.weights_each_step = true;
        return run_on(config, mesh, options);
      };
      const LayoutRun counted = run(model::RowExchange::Counted);
      const auto table = model::make_parameters(config);
      EXPECT_TRUE(compare(counted, run(model::RowExchange::Padded), table).bitwise) << dtype << ", padded";
      EXPECT_TRUE(compare(counted, run(model::RowExchange::Windows), table).bitwise) << dtype << ", windows";
      // At another timing, with dead memory overwritten.
      RunOptions rough;
      rough.delay_seed = 5, rough.poison = true;
      EXPECT_TRUE(compare(counted, run(model::RowExchange::Windows, rough), table).bitwise)
          << dtype << ", delayed";
    }
  }
}

}  // namespace
}  // namespace pleat::verify
