// How codes of few bits fared: the counts of a whole run, whatever its layout.
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "program/code_rows.h"
#include "verify/verify_support.h"

namespace pleat::verify {
namespace {

using namespace program;

config::Config with_codes(std::vector<std::string> more = {}) {
  const std::vector<std::string> all = {"precision.recipe=\"fp8\"", "moe.shared_ffn_hidden_size=16",
                                        "moe.ffn_hidden_size=24",   "model.leading_dense_layers=1",
                                        "model.ffn_hidden_size=48", "train.micro_batch=2"};
  more.insert(more.begin(), all.begin(), all.end());
  return small_model(more);
}

// So small beside the others of its block that it becomes 0: every seventh weight, and a fifth of what a norm passes on.
RunOptions with_small_numbers() {
  RunOptions options;
  options.num_steps = 1;
  options.weight = [](const model::Parameter& p, int64_t element, double initial) {
    const bool norm = p.parameter_class == model::ParameterClass::Norm;
    return element % (norm ? 5 : 7) == 3 ? initial * 1e-14 : initial;
  };
  return options;
}

struct Rows {
  std::vector<int64_t> counts;
  std::vector<double> largest;
};
Rows rows_of(const config::Config& c, const Axes& axes) {
  const LayoutRun run = run_on(c, mesh_of(axes), with_small_numbers());
  return {run.steps.at(0).code_counts, run.steps.at(0).code_largest};
}
int64_t count(const Rows& r, CodeModule module, CodeSide side, int what) {
  return r.counts.at(static_cast<size_t>(code_row(module, side) * kNumCodeCounts + what));
}

// `cuts`: a row of gradients is cut, and each part has blocks of its own: what becomes 0 in them is not the same.
void expect_like_one_rank(const config::Config& c, const std::vector<Axes>& layouts, bool cuts = false) {
  const Rows one = rows_of(c, {});
  for (const Axes& axes : layouts) {
    SCOPED_TRACE(text_of(mesh_of(axes)));
    Rows many = rows_of(c, axes);
    for (int m = 0; m < kNumCodeModules && cuts; ++m) {
      const auto at =
          static_cast<size_t>(code_row(static_cast<CodeModule>(m), CodeSide::Gradients) * kNumCodeCounts + 2);
      EXPECT_NEAR(many.counts.at(at), one.counts.at(at), 0.01 * static_cast<double>(one.counts.at(at - 2)));
      many.counts[at] = one.counts[at];
    }
    EXPECT_EQ(many.counts, one.counts);
    for (size_t i = 0; i < one.largest.size(); ++i)
      EXPECT_NEAR(many.largest.at(i), one.largest[i], 1e-9 * one.largest[i]) << i;
  }
}

TEST(CodeCounts, AreThoseOfTheModel) {
  const config::Config c = with_codes();
  const Rows one = rows_of(c, {});
  ASSERT_EQ(one.counts.size(), size_t{kNumCodeRows * kNumCodeCounts});
  // Of every weight that is coded, each once: all elements, a seventh of them too small.
  std::map<CodeModule, std::pair<int64_t, int64_t>> weights;
  for (const model::Parameter& p : model::make_parameters(c)) {
    if (p.shape.size() < 2 || p.layer < 0) continue;
    const auto module = [&]() -> std::optional<CodeModule> {
      switch (p.parameter_class) {
        case model::ParameterClass::Attention:
          return CodeModule::Attention;
        case model::ParameterClass::Mlp:
          return CodeModule::Mlp;
        case model::ParameterClass::Experts:
          return CodeModule::Experts;
        case model::ParameterClass::SharedExperts:
          return CodeModule::SharedExperts;
        default:
          return {};
      }
    }();
    if (!module) continue;
    auto& [all, small] = weights[*module];
    all += model::num_elements(p);
    for (int64_t e = 0; e < model::num_elements(p); ++e) small += e % 7 == 3;
  }
  ASSERT_EQ(weights.size(), 4u);
  for (const auto& [module, want] : weights) {
    EXPECT_EQ(count(one, module, CodeSide::Weights, 0), want.first) << name_of(module);
    EXPECT_EQ(count(one, module, CodeSide::Weights, 2), want.second) << name_of(module);
    EXPECT_GT(count(one, module, CodeSide::Activations, 2), 0) << name_of(module);
    EXPECT_GT(count(one, module, CodeSide::Gradients, 0), 0) << name_of(module);
    for (const CodeSide side : {CodeSide::Activations, CodeSide::Gradients, CodeSide::Weights}) {
      EXPECT_EQ(count(one, module, side, 1), 0);  // nothing saturates under fp8
      EXPECT_EQ(count(one, module, side, 3), 0);
    }
  }
}

TEST(CodeCounts, DoNotDependOnReplicasExpertsOrThePipeline) {
  expect_like_one_rank(with_codes(), {{.dp = 2}, {.dp = 2, .ep = 2}, {.pp = 2}, {.dp = 2, .pp = 2, .ep = 2}});
}

TEST(CodeCounts, DoNotDependOnTensorAndContextRanks) {
  expect_like_one_rank(with_codes(), {{.cp = 2}});
  expect_like_one_rank(with_codes(), {{.tp = 2}, {.tp = 2, .dp = 2, .ep = 2, .etp = 2}}, true);
}

TEST(CodeCounts, DoNotDependOnRecompute) {
  const Rows plain = rows_of(with_codes(), {});
  for (const char* modules : {"[\"norm\",\"activation\"]", "[\"experts\"]", "[\"layer\"]"}) {
    const Rows again = rows_of(with_codes({std::string("recompute.modules=") + modules}), {});
    EXPECT_EQ(again.counts, plain.counts) << modules;
    EXPECT_EQ(again.largest, plain.largest) << modules;
  }
}

// Experts on the rank of their tokens take copies of token codes; on another, rows are coded as they come. Either way
// products of rows are the same bits, and so is all that sums no tokens of several ranks.
TEST(TokenCodes, GiveTheBitsOfCodedRows) {
  const config::Config c = with_codes();
  RunOptions once;
  once.num_steps = 1;
  const StepResults here = run_on(c, mesh_of({.dp = 2}), once).steps.at(0),
                    there = run_on(c, mesh_of({.dp = 2, .ep = 2}), once).steps.at(0);
  EXPECT_EQ(here.loss, there.loss);
  for (const model::Parameter& p : model::make_parameters(c)) {
    if (p.parameter_class == model::ParameterClass::Experts) continue;
    EXPECT_TRUE(here.gradients.at(p.name) == there.gradients.at(p.name)) << p.name;
  }
}

}  // namespace
}  // namespace pleat::verify
