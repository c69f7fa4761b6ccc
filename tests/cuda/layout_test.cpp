// Layouts on thread ranks that share the GPU equal one rank on it: in float32 to the bound of
// docs/numerics.md section 9, in bfloat16 to the same bound with bfloat16's roundings. And a layout gives the
// same bits every time.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "cuda/cuda_support.h"
#include "cuda/layout_support.h"
#include "verify/compare.h"
#include "verify/rounding_bound.h"

namespace pleat::verify {
namespace {

using testing::layout_config;
using testing::LayoutCase;
using testing::place_of;

const LayoutCase kAlone = {"one rank", 1, {}};

// The expert choices of every token, out of the air: roundings in bfloat16 would route some tokens
// differently, and then nothing is close.
std::map<std::string, std::vector<int32_t>> any_routing(const config::Config& c) {
  std::map<std::string, std::vector<int32_t>> out;
  const int64_t tokens = c.train.micro_batch * c.train.seq_len;
  for (int64_t mb = 0; mb < c.train.num_microbatches; ++mb)
    for (int64_t layer = 0; layer < c.model.num_layers; ++layer) {
      const base::RandomStream random(5, base::RandomUse::Test, static_cast<uint64_t>(mb),
                                      static_cast<uint32_t>(layer));
      auto& rows = out[fmt::format("mb{}.L{}", mb, layer)];
      for (int64_t t = 0; t < tokens; ++t) {
        // Two that differ, ascending.
        const auto experts = static_cast<double>(c.moe.num_experts);
        const int32_t a = static_cast<int32_t>(random.uniform(static_cast<uint64_t>(2 * t)) * experts);
        const int32_t step =
            1 + static_cast<int32_t>(random.uniform(static_cast<uint64_t>(2 * t + 1)) * (experts - 1));
        const int32_t b = (a + step) % static_cast<int32_t>(c.moe.num_experts);
        rows.push_back(std::min(a, b)), rows.push_back(std::max(a, b));
      }
    }
  return out;
}

class OneType {
 public:
  OneType(const std::string& dtype, const testing::Words& sets = {}) : dtype_(dtype), sets_(sets) {
    const config::Config c = layout_config(kAlone, dtype, sets);
    options_.weights_each_step = true;
    if (dtype == "bfloat16") {
      options_.routing = model::RoutingUse::Replay;
      options_.replay = any_routing(c);
    }
    reference_ = run(kAlone);
    testing::Words on_cpu = sets;
    on_cpu.push_back("device.kind=\"cpu\"");
    kappa_ = conditioning(layout_config(kAlone, "float64", on_cpu),
                          [&](const config::Config& config, const RunOptions& asked) {
                            RunOptions options = options_;
                            options.weight = asked.weight;
                            return run_layout(config, {}, {}, options);
                          });
  }

  LayoutRun run(const LayoutCase& layout) const {
    const config::Config c = layout_config(layout, dtype_, sets_);
    const auto placed = place_of(c, layout.ranks);
    return run_layout(c, placed.mesh, placed.roles, options_);
  }

  void expect_inside(const LayoutCase& layout) {
    SCOPED_TRACE(fmt::format("{} {}", layout.name, dtype_));
    const config::Config c = layout_config(kAlone, dtype_, sets_);
    const Rounding rounding = dtype_ == "bfloat16" ? bfloat16_rounding(layout.ranks) : float32_rounding(c);
    const LayoutRun got = run(layout);
    const BoundReport report = inside_bound(c, rounding, kappa_, reference_, got);
    EXPECT_EQ(report.fault, "");
    // The loss is a mean of numbers of order one: less sensitive than any gradient.
    const Comparison both = compare(reference_, got, model::make_parameters(c));
    EXPECT_LE(both.first_loss, 16 * rounding.unit);
    fmt::print(
        "{} {}: gradients differ by {:.2g} ({:.0f} % of the bound, later {:.0f} %), weights by {:.2g} "
        "({:.0f} %), the first loss by {:.2g}\n",
        layout.name, dtype_, report.gradient, 100 * report.gradient_share, 100 * report.later_share,
        report.weight, 100 * report.weight_share, both.first_loss);
  }

 private:
  std::string dtype_;
  testing::Words sets_;
  RunOptions options_;
  LayoutRun reference_;
  Conditioning kappa_;
};

TEST(CudaLayouts, Float32EqualsOneRank) {
  PLEAT_NEEDS_GPU();
  OneType float32("float32");
  for (const LayoutCase& layout : testing::layout_cases()) float32.expect_inside(layout);
}

TEST(CudaLayouts, Bfloat16EqualsOneRank) {
  PLEAT_NEEDS_GPU();
  // Steps that a bfloat16 weight feels: one that is lost would show.
  OneType bfloat16("bfloat16", {"optimizer.lr=0.01"});
  for (const LayoutCase& layout : testing::layout_cases()) bfloat16.expect_inside(layout);
}

TEST(CudaLayouts, ALayoutGivesTheSameBitsEveryTime) {
  PLEAT_NEEDS_GPU();
  for (const char* dtype : {"float32", "bfloat16"})
    for (const LayoutCase& layout : testing::layout_cases()) {
      if (layout.ranks != 4) continue;
      SCOPED_TRACE(fmt::format("{} {}", layout.name, dtype));
      const config::Config c = layout_config(layout, dtype);
      const auto placed = place_of(c, layout.ranks);
      const LayoutRun first = run_layout(c, placed.mesh, placed.roles, {});
      const LayoutRun second = run_layout(c, placed.mesh, placed.roles, {});
      EXPECT_TRUE(compare(first, second, model::make_parameters(c)).bitwise);
    }
}

// The comparison above would notice: a reduction that forgets one rank.
TEST(CudaLayouts, AForgottenReductionIsNoticed) {
  PLEAT_NEEDS_GPU();
  const LayoutCase layout = {"DP2", 2, {}};
  const config::Config c = layout_config(layout, "float32");
  const auto placed = place_of(c, layout.ranks);
  RunOptions broken;
  broken.fault = Fault::DropReduction;
  const LayoutRun one = run_layout(layout_config(kAlone, "float32"), {}, {}, {});
  EXPECT_NE(
      compare(one, run_layout(c, placed.mesh, placed.roles, broken), model::make_parameters(c)).verdict(1e-2),
      "");
}

}  // namespace
}  // namespace pleat::verify
