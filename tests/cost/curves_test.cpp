// Curves find the numbers they were made with, are carried to other machines by their rates, and files of them are checked.
#include "cost/curves.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"
#include "cost/load.h"
#include "cost/machine_file.h"
#include "cost/price.h"

namespace pleat::cost {
namespace {

std::vector<CurvePoint> points_of(const Machine& m, const Curve& truth, double noise) {
  const base::RandomStream random(7, base::RandomUse::Test, 1, 1);
  std::vector<CurvePoint> out;
  uint64_t draw = 0;
  for (const double flops : {1e8, 1e9, 1e10, 1e11, 1e12})
    for (const double intensity : {30.0, 100.0, 300.0, 1000.0}) {
      CurvePoint p;
      p.of = CurveClass::Product;
      p.dtype = tensor::Dtype::BF16;
      p.work = {flops, flops / intensity, 1};
      p.ns = curve_ns(m, truth, p.dtype, p.work) * (1 + noise * (2 * random.uniform(draw++) - 1));
      out.push_back(p);
    }
  return out;
}

TEST(Curves, AFitFindsWhatThePointsWereMadeWith) {
  const Machine m = find_machine("h200");
  const Curve truth{1.7, 1.35, 0.4};
  const FittedCurves exact = fit_curves(m, points_of(m, truth, 0), ideal_curves(), "test");
  ASSERT_EQ(exact.fits.size(), 1u);
  EXPECT_NEAR(exact.fits[0].curve.launch, truth.launch, 1e-5);
  EXPECT_NEAR(exact.fits[0].curve.flops, truth.flops, 1e-5);
  EXPECT_NEAR(exact.fits[0].curve.bytes, truth.bytes, 1e-5);
  EXPECT_LT(exact.fits[0].worst_error, 1e-5);
  const FittedCurves noisy = fit_curves(m, points_of(m, truth, 0.05), ideal_curves(), "test");
  EXPECT_NEAR(noisy.fits[0].curve.flops, truth.flops, 0.1);
  EXPECT_LT(noisy.fits[0].mean_error, 0.05);
  EXPECT_GT(noisy.fits[0].mean_error, 0.001) << "residuals are those of the points";
  // Classes without points stay as they were.
  EXPECT_EQ(exact.curves[CurveClass::Stream], ideal_curves()[CurveClass::Stream]);
}

TEST(Curves, NoTermIsNegative) {
  const Machine m = find_machine("h200");
  std::vector<CurvePoint> points = points_of(m, {1, 1.3, 0}, 0.2);
  const FittedCurves fit = fit_curves(m, points, ideal_curves(), "test");
  EXPECT_GE(fit.fits[0].curve.launch, 0);
  EXPECT_GE(fit.fits[0].curve.bytes, 0);
}

TEST(Curves, AreCarriedByTheRatesOfAMachine) {
  const Curve c{0, 1.25, 0};
  const kernels::Work product{1e12, 1e6, 1};
  EXPECT_DOUBLE_EQ(curve_ns(find_machine("h100"), c, tensor::Dtype::BF16, product), 1.25 * 1e12 / 989e3);
  EXPECT_DOUBLE_EQ(curve_ns(find_machine("b200"), c, tensor::Dtype::BF16, product), 1.25 * 1e12 / 2250e3);
  EXPECT_THROW(curve_ns(find_machine("cpu"), c, tensor::Dtype::BF16, product), base::Error)
      << "it has no such rate";
}

TEST(Curves, FilesAreReadBackAndChecked) {
  const Curves shipped = shipped_curves(MachineKind::Gpu);
  EXPECT_EQ(curves_from_toml(to_toml(shipped), "x"), shipped);
  const auto refused = [](const std::string& text) {
    try {
      curves_from_toml(text, "x");
    } catch (const base::Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(refused("[product]\nlaunch = 1\n").find("is missing"), std::string::npos);
  EXPECT_NE(refused(to_toml(shipped) + "[new]\nflops = 1\n").find("unknown key \"new.flops\""),
            std::string::npos);
  std::string negative = to_toml(shipped);
  negative.replace(negative.find("launch = "), 10, "launch = -1\n#");
  EXPECT_NE(refused(negative).find("must be a number from 0"), std::string::npos);
  Curves nothing = shipped;
  nothing.of[static_cast<size_t>(CurveClass::Stream)] = {0, 0, 0};
  EXPECT_NE(refused(to_toml(nothing)).find("launch, flops and bytes of stream are all 0"), std::string::npos);
  std::string painted = to_toml(shipped);
  painted.replace(painted.find("source = \""), 10, "source = \"\\u001b[31m");
  EXPECT_NE(refused(painted).find("printable"), std::string::npos) << refused(painted);
}

TEST(Load, TheFullestRankSetsThePace) {
  EXPECT_DOUBLE_EQ(rank_imbalance(std::vector<double>{1, 1, 1, 1}, 2), 1);
  EXPECT_DOUBLE_EQ(rank_imbalance(std::vector<double>{3, 1, 0, 0}, 2), 2);
  EXPECT_DOUBLE_EQ(rank_imbalance(std::vector<double>{3, 1, 0, 0}, 1), 1) << "one rank has all rows";
  for (const double most : {1.0, 1.5, 4.0, 16.0}) {
    const std::vector<double> loads = falling_loads(most, 16);
    EXPECT_NEAR(loads.front(), most, 1e-9 * most);
    double sum = 0;
    for (const double v : loads) sum += v;
    EXPECT_NEAR(sum, 16, 1e-9);
  }
  EXPECT_THROW(falling_loads(17, 16), base::Error);
  const RankLoad drawn = drawn_load(4, 16, 4, 1), again = drawn_load(4, 16, 4, 1),
                 all = drawn_load(4, 16, 16, 1);
  double most = 0, least = 100;
  for (int layer = 0; layer < 20; ++layer) {
    EXPECT_EQ(drawn(layer, 0), again(layer, 0)) << "a function of the seed";
    EXPECT_NEAR(all(layer, 0), 4, 1e-6) << "a rank for each expert";
    most = std::max(most, drawn(layer, 0)), least = std::min(least, drawn(layer, 0));
  }
  EXPECT_GE(least, 1);
  EXPECT_LE(most, 4 + 1e-9);
  EXPECT_GT(most, least) << "each layer has an order of its own";
  const RankLoad recorded = recorded_load({{2, {30, 10, 0, 0}}}, 4, 2);
  EXPECT_DOUBLE_EQ(recorded(2, 5), 2);
  EXPECT_DOUBLE_EQ(recorded(3, 0), 1);
  EXPECT_THROW(recorded_load({{0, {1, 2}}}, 4, 2), base::Error);
}

// Kinds of costs files name types of lists in brackets, and attributes.
TEST(Curves, WordsOfAKindThatAreNoTypesArePassedOver) {
  for (const auto& [kind, dtype] :
       {std::pair{"pack_shares wgrad [bf16] f32", tensor::Dtype::F32},
        std::pair{"linear fwd bf16 bf16 - - bf16", tensor::Dtype::BF16},
        std::pair{"gather_plan fwd i32 pad=0", tensor::Dtype::F32},
        std::pair{"scaled_linear fwd e4m3 f32 e4m3 f32 - - bf16 recipe=1", tensor::Dtype::E4M3}}) {
    CostEntry entry;
    entry.key.kind = kind;
    EXPECT_EQ(curve_point(entry).dtype, dtype) << kind;
  }
}

// Codes of few bits have rates of their own on a GPU; a CPU multiplies the floats they stand for.
TEST(Curves, CodesTakeTheRateOfTheirFormat) {
  const kernels::Work work{1e12, 1e6, 1};
  const Machine gpu = find_machine("b200"), cpu = find_machine("cpu");
  const Curve all{0, 1, 0};
  EXPECT_NEAR(curve_ns(gpu, all, tensor::Dtype::BF16, work) / curve_ns(gpu, all, tensor::Dtype::E4M3, work),
              2, 1e-9);
  EXPECT_LT(curve_ns(gpu, all, tensor::Dtype::E2M1, work), curve_ns(gpu, all, tensor::Dtype::E4M3, work));
  EXPECT_EQ(curve_ns(cpu, all, tensor::Dtype::E4M3, work), curve_ns(cpu, all, tensor::Dtype::F32, work));
  EXPECT_THROW(curve_ns(find_machine("a100"), all, tensor::Dtype::E4M3, work), base::Error);
  EXPECT_EQ(curve_class(program::KernelKind::scaled_linear, program::Phase::Forward, work),
            CurveClass::Scaled);
  EXPECT_EQ(curve_class(program::KernelKind::scaled_grouped_linear, program::Phase::BackwardWeight, work),
            CurveClass::ScaledGrouped);
}

}  // namespace
}  // namespace pleat::cost
