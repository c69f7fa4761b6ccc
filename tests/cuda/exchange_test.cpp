// The ways rows reach experts on other ranks, on a GPU that thread ranks share: all have the same bits.
#include <gtest/gtest.h>

#include "cuda/cuda_support.h"
#include "cuda/layout_support.h"
#include "model/parameters.h"
#include "verify/compare.h"

namespace pleat::verify {
namespace {

using testing::LayoutCase;

class CudaExchange : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaExchange, EveryWayHasTheSameBits) {
  PLEAT_NEEDS_GPU();
  const LayoutCase cases[] = {
      {"EP2", 2, {"parallel.ep=2"}},
      {"EP4", 4, {"parallel.ep=4"}},
      {"EP2 x ETP2", 4, {"parallel.ep=2", "parallel.etp=2"}},
      {"EP4 on TP2", 4, {"parallel.ep=4", "parallel.tp=2"}},
      {"EP2, recompute", 2, {"parallel.ep=2", "recompute.modules=[\"experts\"]"}},
      {"EP4, padded experts", 4, {"parallel.ep=4", "moe.capacity_factor=1.0", "moe.pad_to_capacity=true"}},
      {"EP4, trimmed", 4, {"parallel.ep=4", "moe.token_budget=1.1", "moe.overflow=\"drop\""}},
  };
  for (const LayoutCase& c : cases) {
    SCOPED_TRACE(c.name);
    const config::Config config = testing::layout_config(c, GetParam());
    const testing::Placed placed = testing::place_of(config, c.ranks);
    const auto run = [&](model::RowExchange exchange,
                         model::Dispatcher dispatcher = model::Dispatcher::AllToAll) {
      model::Mesh mesh = placed.mesh;
      mesh.exchange = exchange, mesh.dispatcher = dispatcher;
      return run_layout(config, mesh, placed.roles, {});
    };
    const auto table = model::make_parameters(config);
    const LayoutRun counted = run(model::RowExchange::Counted);
    EXPECT_TRUE(compare(counted, run(model::RowExchange::Padded), table).bitwise) << "padded";
    EXPECT_TRUE(compare(counted, run(model::RowExchange::Windows), table).bitwise) << "windows";
    EXPECT_TRUE(
        compare(counted, run(model::RowExchange::Counted, model::Dispatcher::AllGather), table).bitwise)
        << "gathered";
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaExchange, ::testing::Values("float32", "bfloat16"));

}  // namespace
}  // namespace pleat::verify
