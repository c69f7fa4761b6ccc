// Buckets and owners: how gradients are summed and weights gathered changes no number.
#include <gtest/gtest.h>

#include "base/error.h"
#include "verify/grid.h"
#include "verify/verify_support.h"

namespace pleat::verify {
namespace {

config::Config config_of(const std::string& dtype, std::vector<std::string> more = {}) {
  GridCase c;
  c.num_microbatches = 8;
  config::Config out = grid_config(c, dtype);
  if (more.empty()) return out;
  std::vector<std::string> sets = {"train.num_microbatches=8"};
  sets.insert(sets.end(), more.begin(), more.end());
  return small_model(std::move(sets));
}

const std::vector<Axes>& sharded_axes() {
  static const std::vector<Axes> all = {{1, 1, 4, 1, 1, 1}, {2, 1, 4, 1, 2, 1}, {1, 2, 2, 2, 2, 1},
                                        {2, 2, 2, 1, 4, 2}, {1, 1, 8, 1, 2, 1}, {2, 1, 2, 2, 1, 2}};
  return all;
}

LayoutRun run_with(const config::Config& c, const Axes& axes, int64_t bucket_bytes, int64_t owners,
                   const RunOptions& options = {}) {
  model::Mesh mesh = mesh_of(axes);
  mesh.bucket_bytes = bucket_bytes;
  mesh.optimizer_group = owners;
  return run_layout(c, mesh, even_roles(c, mesh), options);
}

TEST(Buckets, TheirSizeChangesNoBitInFloat32) {
  const config::Config c = config_of("float32");
  const auto table = model::make_parameters(c);
  for (const Axes& axes : sharded_axes()) {
    SCOPED_TRACE(text_of(mesh_of(axes)));
    const LayoutRun one_by_one = run_with(c, axes, 0, 0);
    for (const int64_t bytes : {int64_t{6000}, int64_t{40000}, int64_t{1} << 40}) {
      const Comparison result = compare(one_by_one, run_with(c, axes, bytes, 0), table);
      EXPECT_TRUE(result.bitwise) << bytes << " bytes: " << result.worst();
      EXPECT_EQ(result.verdict(0), "");
    }
  }
}

TEST(Buckets, MemoryIsPoisonedAndNobodyNotices) {
  const config::Config c = config_of("float64");
  RunOptions options;
  options.poison = true;
  const LayoutRun reference = run_layout(c, {}, {}, {});
  for (const Axes& axes : {Axes{1, 1, 4, 1, 2, 1}, Axes{2, 1, 2, 2, 2, 1}})
    for (const int64_t bytes : {int64_t{0}, int64_t{6000}, int64_t{1} << 30})
      EXPECT_EQ(
          compare(reference, run_with(c, axes, bytes, 2, options), model::make_parameters(c)).verdict(1e-10),
          "");
}

TEST(Owners, SubGroupsOfEverySizeEqualOneRank) {
  const config::Config c = config_of("float64");
  const auto table = model::make_parameters(c);
  const LayoutRun reference = run_layout(c, {}, {}, {});
  int layouts = 0;
  for (const Axes& axes : sharded_axes())
    for (const int64_t owners : {1, 2, 4, 8})
      for (const int64_t bytes : {int64_t{0}, int64_t{1} << 30}) {
        SCOPED_TRACE(fmt::format("{} owners {} bytes {}", text_of(mesh_of(axes)), owners, bytes));
        // Throws where ranks that repeat a state disagree about a bit of it.
        const Comparison result = compare(reference, run_with(c, axes, bytes, owners), table);
        EXPECT_EQ(result.verdict(1e-10), "") << result.worst();
        ++layouts;
      }
  EXPECT_EQ(layouts, 48);
}

// More replicas than owners: the norm must count each element once.
TEST(Owners, SkippedNormIsNoticedInSubGroups) {
  const config::Config c = config_of("float64");
  const LayoutRun reference = run_layout(c, {}, {}, {});
  for (const Fault fault : {Fault::SkipNorm, Fault::DropReduction}) {
    RunOptions options;
    options.fault = fault;
    // The last rank repeats what the second owns: without its norm nothing is missing.
    const std::string verdict =
        compare(reference, run_with(c, {1, 1, 4, 1, 1, 1}, 0, 2, options), model::make_parameters(c))
            .verdict(1e-10);
    EXPECT_EQ(verdict.empty(), fault == Fault::SkipNorm) << verdict;
  }
}

TEST(Owners, FrozenTiedAndPredictingModels) {
  for (const std::vector<std::string>& sets :
       {std::vector<std::string>{"optimizer.freeze=[\"attention\",\"router\"]"},
        {"model.tie_embeddings=true"},
        {"model.num_mtp_layers=1"}}) {
    const config::Config c = config_of("float64", sets);
    const LayoutRun reference = run_layout(c, {}, {}, {});
    for (const Axes& axes : {Axes{2, 1, 4, 1, 2, 1}, Axes{1, 1, 4, 2, 2, 1}})
      for (const int64_t bytes : {int64_t{0}, int64_t{6000}, int64_t{1} << 30})
        EXPECT_EQ(compare(reference, run_with(c, axes, bytes, 2), model::make_parameters(c)).verdict(1e-10),
                  "")
            << sets[0] << " " << text_of(mesh_of(axes)) << " " << bytes;
  }
}

TEST(Owners, AGroupThatDoesNotDivideIsRefusedWithTheEquation) {
  const config::Config c = config_of("float64");
  try {
    run_with(c, {2, 1, 4, 1, 1, 1}, 0, 3);
    FAIL() << "not refused";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find(
                  "parallel.optimizer_group = 3 does not divide the replicas of dense weights, dp x cp = 4 x "
                  "1 = 4: 4 / 3 = 1.333. Nearest that do: 2 and 4"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace pleat::verify
