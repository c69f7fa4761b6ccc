// Layouts on thread ranks that share the GPU equal one rank on it, in float32 and in bfloat16, to a multiple of its own
// roundings (verify/precision.h). And a layout gives the same bits every time.
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/cuda_support.h"
#include "cuda/layout_support.h"
#include "verify/compare.h"
#include "verify/precision.h"

namespace pleat::verify {
namespace {

using testing::layout_config;
using testing::LayoutCase;
using testing::place_of;

const LayoutCase kAlone = {"one rank", 1, {}};

// Grouped-query attention, and latent attention with sigmoid scores and a bias that balances.
const testing::Words kGrouped = {"optimizer.lr=0.001", "model.init_std=0.05"};
const testing::Words kLatent = {
    "optimizer.lr=0.001",       "model.init_std=0.05",   "model.attention=\"mla\"",
    "model.q_lora_rank=16",     "model.kv_lora_rank=16", "model.qk_nope_head_dim=8",
    "model.qk_rope_head_dim=8", "model.v_head_dim=8",    "model.num_kv_heads=",
    "model.head_dim=",          "model.qk_norm=",        "moe.load_balancing=[\"bias\",\"seq_aux\"]",
    "moe.aux_coef=[0.01]",      "moe.score=\"sigmoid\""};

class OnTheGpu {
 public:
  OnTheGpu(const char* dtype, const testing::Words& sets)
      : dtype_(dtype), sets_(sets), one_(layout_config(kAlone, dtype, sets)) {}

  PrecisionReport verify(const LayoutCase& layout, Fault fault = Fault::None) const {
    const config::Config c = layout_config(layout, dtype_, sets_);
    const auto placed = place_of(c, layout.ranks);
    return one_.verify(c, placed.mesh, placed.roles, fault);
  }

  void expect_inside_all() const {
    for (const LayoutCase& layout : testing::layout_cases()) {
      SCOPED_TRACE(fmt::format("{} {}", layout.name, dtype_));
      const PrecisionReport report = verify(layout);
      EXPECT_EQ(report.verdict, "");
      fmt::print("{} {}: one rank {:.0f} % of its bound\n", layout.name, dtype_,
                 100 * std::max(report.alone.gradient_share, report.alone.later_share));
      for (const PrecisionRow& r : report.rows)
        fmt::print("  {:35} {:8.2g} noise {:8.2g} bound {:8.2g} ({:.0f} %) {}\n", r.what, r.difference,
                   r.noise, r.bound, 100 * r.difference / r.bound, r.worst);
    }
  }

 private:
  std::string dtype_;
  testing::Words sets_;
  OneRank one_;
};

TEST(CudaLayouts, Float32EqualsOneRank) {
  PLEAT_NEEDS_GPU();
  OnTheGpu("float32", kGrouped).expect_inside_all();
}

TEST(CudaLayouts, Bfloat16EqualsOneRank) {
  PLEAT_NEEDS_GPU();
  OnTheGpu("bfloat16", kGrouped).expect_inside_all();
}

TEST(CudaLayouts, Bfloat16LatentEqualsOneRank) {
  PLEAT_NEEDS_GPU();
  OnTheGpu("bfloat16", kLatent).expect_inside_all();
}

// One expert's gradients, summed without one rank's part of them.
TEST(CudaLayouts, OneExpertsLostReductionIsFoundInBfloat16) {
  PLEAT_NEEDS_GPU();
  for (const testing::Words& sets : {kGrouped, kLatent}) {
    const OnTheGpu gpu("bfloat16", sets);
    for (const LayoutCase& layout : testing::layout_cases()) {
      if (layout.name != "TP2" && layout.name != "CP2 ring" && layout.name != "EP2 x TP2") continue;
      SCOPED_TRACE(layout.name);
      const PrecisionReport report = gpu.verify(layout, Fault::DropExpert);
      EXPECT_NE(report.verdict.find("gradients of experts differ"), std::string::npos) << report.verdict;
      for (const PrecisionRow& r : report.rows)
        if (r.what == "gradients of experts") {
          EXPECT_GT(r.difference, 4 * r.bound);
          fmt::print("{}: {} differ by {:.2g}, bound {:.2g} ({})\n", layout.name, r.what, r.difference,
                     r.bound, r.worst);
        }
    }
  }
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
