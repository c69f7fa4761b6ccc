// Times by operation, their floors, and the picture of both.
#include <gtest/gtest.h>

#include "bench/breakdown_svg.h"
#include "bench/layer_bench.h"
#include "interpret/plan/plan.h"
#include "model/parameters.h"
#include "schedule/build.h"

namespace pleat::bench {
namespace {

program::Program layer() {
  const config::Config config = layer_config({"small", 64, 32, 16, 8, 2}, {});
  return schedule::build_moe_layer(config, model::make_parameters(config), schedule::LayerPart::Both);
}

TEST(OperationTimes, FloorIsTheSlowerOfProductsAndBytes) {
  const program::Program p = layer();
  interpret::Timeline timeline;
  for (size_t i = 0; i < p.stages.size(); ++i)
    timeline.spans.push_back({static_cast<program::StageId>(i), static_cast<int64_t>(1000 * i),
                              static_cast<int64_t>(1000 * i + 10 * (i + 1))});
  const auto find = [](const std::vector<OperationTime>& times, const std::string& name) {
    for (const OperationTime& t : times)
      if (t.name == name) return t;
    ADD_FAILURE() << name;
    return OperationTime{};
  };
  // Slow products: their floor counts multiply-adds. 128 rows of 32 times 16 x 2.
  const auto products = operation_times(p, timeline, {1e30, 1e6});
  EXPECT_NEAR(find(products, "fwd expert_up").floor_seconds, 2.0 * 128 * 32 * 32 / 1e6, 1e-9);
  EXPECT_LE(find(products, "fwd permute").floor_seconds, 1e-9);
  // Slow memory: their floor counts bytes. Rows in and out, weights of eight experts, offsets.
  const auto bytes = operation_times(p, timeline, {1e6, 1e30});
  EXPECT_NEAR(find(bytes, "fwd expert_up").floor_seconds,
              (2.0 * (128 * 32 + 128 * 32 + 8 * 32 * 32) + 4 * 9) / 1e6, 1e-9);
  for (size_t i = 0; i + 1 < bytes.size(); ++i) EXPECT_GE(bytes[i].seconds, bytes[i + 1].seconds);
  EXPECT_EQ(find(operation_times(p, timeline), "fwd expert_up").floor_seconds, 0);
}

TEST(BreakdownSvg, DrawsABarForWhatCounts) {
  const std::vector<OperationTime> times = {{"fwd a<b", 2, 60e-3, 0, 30e-3},
                                            {"wgrad c", 1, 39.5e-3, 0, 0},
                                            {"dgrad tiny", 1, 0.25e-3, 0, 0.1e-3},
                                            {"dgrad small", 1, 0.25e-3, 0, 0.1e-3}};
  const std::string svg = breakdown_svg(times, "one step");
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  for (const char* word : {"one step", "fwd a&lt;b", "60.00 ms, floor 30.00 (50 %)", "39.50 ms<",
                           "all others", "0.50 ms, floor 0.20 (40 %)", "100.00 ms in all"})
    EXPECT_NE(svg.find(word), std::string::npos) << word << "\n" << svg;
  EXPECT_EQ(svg.find("tiny"), std::string::npos);
}

}  // namespace
}  // namespace pleat::bench
