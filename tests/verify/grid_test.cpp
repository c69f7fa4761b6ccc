// The grid of layouts: each either equals one rank in double to 1e-10 (gradients of every step, norm, losses,
// clip factor, weights and moments after three clipped steps) or is refused by a rule of the golden list. A
// spread sample runs here; PLEAT_GRID=all runs every one (./dev test-grid).
#include "verify/grid.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "support/files.h"

namespace pleat::verify {
namespace {

void expect_refused(const std::vector<GridCase>& all, const std::string& file, const char* what) {
  std::map<std::string, int> by_rule;
  int passing = 0;
  std::string list;
  for (const GridCase& c : all) {
    const std::string why = refusal(c);
    if (why.empty()) {
      ++passing;
      continue;
    }
    ++by_rule[why];
    list += c.name() + ": " + why + "\n";
  }
  const std::string path = std::string(PLEAT_SOURCE_DIR) + "/tests/golden/" + file;
  if (std::getenv("PLEAT_REGENERATE")) std::ofstream(path) << list;
  EXPECT_EQ(list, testing::read_file(path)) << "if the change is meant, run with PLEAT_REGENERATE=1";
  EXPECT_GT(passing, 0);
  if (!whole_grid()) return;
  fmt::print("{} {} to pass, {} refused:\n", passing, what, all.size() - size_t(passing));
  for (const auto& [rule, count] : by_rule) fmt::print("  {:5} {}\n", count, rule);
}

TEST(Grid, RefusedLayoutsAreTheGoldenList) { expect_refused(grid(), "refused_layouts.txt", "layouts"); }
TEST(Grid, RefusedRingsAreTheGoldenList) { expect_refused(ring_grid(), "refused_rings.txt", "rings"); }

// Without PLEAT_GRID=all every `sample`-th case, from the `first` on.
void expect_equal(const std::vector<GridCase>& all, size_t sample, size_t first, const char* what) {
  // The reference depends on the model, the microbatches and how tokens are dropped, not on the layout.
  std::map<std::string, LayoutRun> references;
  int passed = 0, looked_at = 0;
  double worst = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const GridCase& c = all[i];
    if (!refusal(c).empty() || (!whole_grid() && i % sample != first)) continue;
    ++looked_at;
    const config::Config config = grid_config(c, "float64");
    const std::string key =
        fmt::format("{} {} {} {} {}", c.latent, c.num_microbatches, config.model.num_layers, c.pad,
                    c.pad ? fmt::format("{} {}", c.mesh.tp, c.mesh.cp) : "");
    if (!references.contains(key)) references[key] = reference_of(c, config);
    SCOPED_TRACE(c.name());
    try {
      const LayoutRun run = run_layout(config, c.mesh, even_roles(config, c.mesh), {});
      const Comparison result = compare(references[key], run, model::make_parameters(config));
      EXPECT_EQ(result.verdict(1e-10), "");
      worst = std::max(worst, result.worst());
      passed += result.verdict(1e-10).empty();
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
    }
    if (whole_grid() && looked_at % 200 == 0)
      fmt::print("{} of {} looked at, {} passed\n", i, all.size(), passed), std::fflush(stdout);
  }
  EXPECT_EQ(passed, looked_at);
  EXPECT_GT(passed, 0);
  if (whole_grid()) fmt::print("{} {} passed, largest difference {:.2g}\n", passed, what, worst);
}

TEST(Grid, LayoutsEqualOneRank) { expect_equal(grid(), 41, 7, "layouts"); }
TEST(Grid, RingsEqualOneRank) { expect_equal(ring_grid(), 23, 5, "rings"); }

}  // namespace
}  // namespace pleat::verify
