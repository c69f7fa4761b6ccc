// Load balancing on whole steps: what the objective is invariant to, what counts and when, and idle experts.
#include <gtest/gtest.h>

#include <cmath>

#include "schedule/build.h"
#include "train/train_support.h"

namespace pleat::train::testing {
namespace {

// The same four sequences cut into microbatches of `micro_batch`.
config::Config split(int micro_batch, std::vector<std::string> sets) {
  sets.push_back(fmt::format("train.micro_batch={}", micro_batch));
  sets.push_back(fmt::format("train.num_microbatches={}", 4 / micro_batch));
  return small_config("", sets);
}

std::vector<double> as_doubles(const std::vector<std::byte>& bytes) {
  std::vector<double> out(bytes.size() / sizeof(double));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

double error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, scale = 0;
  for (size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]), scale += b[i] * b[i];
  return std::sqrt(difference / std::max(scale, 1e-300));
}

Snapshot gradients_of(const config::Config& c, bool without_token_loss) {
  runtime::Programs start(c, train_only());
  start.initialize();
  Runtime bound(with_gradients_kept(start.train_plan().program), 2);
  copy_state(start, bound);
  write_random_batch(bound.executor(), c, 1);
  if (without_token_loss) static_cast<double*>(bound.executor().data("norm"))[0] = 0;
  bound.executor().run();
  return gradients(bound.program(), bound.executor());
}

}  // namespace

TEST(Objective, TokenLossGradientsDoNotDependOnTheSplit) {
  const std::vector<std::string> sets = {"moe.load_balancing=[\"none\"]", "moe.aux_coef=[]"};
  const Snapshot whole = gradients_of(split(4, sets), false);
  for (int micro : {1, 2})
    for (const auto& [name, bytes] : gradients_of(split(micro, sets), false))
      EXPECT_LE(error(as_doubles(bytes), as_doubles(whole.at(name))), 1e-10)
          << name << " micro_batch " << micro;
}

// Auxiliary terms alone, on the router weight they reach first.
TEST(Objective, SequenceZAndExactGlobalDoNotDependOnTheSplit) {
  const std::vector<std::vector<std::string>> kinds = {
      {"moe.load_balancing=[\"seq_aux\"]", "moe.aux_coef=[0.1]"},
      {"moe.load_balancing=[\"none\"]", "moe.aux_coef=[]", "moe.z_coef=0.1"},
      {"moe.load_balancing=[\"global_aux\"]", "moe.aux_coef=[0.1]", "moe.global_aux_form=\"exact\"",
       "train.order=\"gpipe\""}};
  for (const auto& sets : kinds) {
    const Snapshot whole = gradients_of(split(4, sets), true);
    const auto expected = as_doubles(whole.at("layers.1.router.weight.grad"));
    double norm = 0;
    for (double g : expected) norm += g * g;
    EXPECT_GT(norm, 0) << sets[0];
    for (int micro : {1, 2})
      EXPECT_LE(error(as_doubles(gradients_of(split(micro, sets), true).at("layers.1.router.weight.grad")),
                      expected),
                1e-9)
          << sets[0] << micro;
  }
}

TEST(Objective, MicrobatchTypeDependsOnTheSplitByDefinition) {
  const std::vector<std::string> sets = {"moe.load_balancing=[\"aux\"]", "moe.aux_coef=[0.1]"};
  EXPECT_GT(error(as_doubles(gradients_of(split(1, sets), true).at("layers.1.router.weight.grad")),
                  as_doubles(gradients_of(split(4, sets), true).at("layers.1.router.weight.grad"))),
            1e-3);
}

TEST(Objective, ZeroCoefficientGivesNoAuxGradientAndAPositiveOneReachesTheRouter) {
  const auto norm = [](const std::vector<double>& g) {
    double sum = 0;
    for (double x : g) sum += x * x;
    return sum;
  };
  EXPECT_EQ(norm(as_doubles(
                gradients_of(split(2, {"moe.aux_coef=[0.0]"}), true).at("layers.0.router.weight.grad"))),
            0);
  EXPECT_GT(norm(as_doubles(
                gradients_of(split(2, {"moe.aux_coef=[0.01]"}), true).at("layers.0.router.weight.grad"))),
            0);
}

// users.md bug 3b: counters and bias do not see recompute, evaluation or the number of microbatches.
TEST(BiasBalancing, CountsOncePerTokenWhateverElseRuns) {
  const std::vector<std::string> base = {"moe.score=\"sigmoid\"", "moe.load_balancing=[\"bias\"]",
                                         "moe.aux_coef=[]", "optimizer.lr=0.01"};
  std::string expected;
  for (int micro : {4, 2, 1})
    for (const char* recompute : {"recompute.modules=[]", "recompute.modules=[\"layer\"]"})
      for (bool evaluate : {false, true}) {
        std::vector<std::string> sets = base;
        sets.push_back(recompute);
        const config::Config c = split(micro, sets);
        runtime::Programs programs(c);
        programs.initialize();
        std::string seen;
        for (int step = 1; step <= 3; ++step) {
          write_random_batch(programs.train(), c, step);
          programs.train().run();
          for (int layer = 0; layer < 2; ++layer) {
            const auto* load =
                static_cast<const int64_t*>(programs.train().data(fmt::format("L{}.load", layer)));
            int64_t sum = 0;
            for (int e = 0; e < 5; ++e) sum += load[e], seen += fmt::format("{} ", load[e]);
            EXPECT_EQ(sum, 4 * c.train.seq_len * c.moe.top_k);
            const auto* bias = static_cast<const float*>(
                programs.train().data(fmt::format("layers.{}.router.expert_bias", layer)));
            for (int e = 0; e < 5; ++e) seen += fmt::format("{} ", bias[e]);
          }
          if (evaluate) {
            interpret::Executor& e = programs.evaluate();
            for (const char* what :
                 {"tokens", "labels", "positions", "doc_start", "valid", "loss_mask", "token_index"}) {
              const program::Value& v =
                  e.program().values[static_cast<size_t>(e.find(fmt::format("mb0.{}", what)))];
              std::memset(e.data(fmt::format("mb0.{}", what)), 0, static_cast<size_t>(program::num_bytes(v)));
            }
            e.run();
          }
        }
        if (expected.empty()) expected = seen;
        EXPECT_EQ(seen, expected) << "micro_batch " << micro << " " << recompute << " evaluate " << evaluate;
      }
}

// users.md bug 4b: experts without tokens get a gradient of exactly zero and are still decayed.
TEST(IdleExperts, ZeroGradientAndDecayStillApplies) {
  const config::Config c =
      small_config("", {"optimizer.lr=0.5", "optimizer.schedule=\"constant\"", "optimizer.weight_decay=0.25",
                        "optimizer.clip=0.0", "moe.load_balancing=[\"none\"]", "moe.aux_coef=[]"});
  runtime::Programs start(c, train_only());
  start.initialize();
  for (const std::vector<int32_t>& used : {std::vector<int32_t>{0, 1}, {3, 4}, {1, 4}}) {
    Runtime bound(
        with_gradients_kept(schedule::build_training_step(c, start.table(), {model::RoutingUse::Replay})), 2);
    copy_state(start, bound);
    for (int step = 1; step <= 3; ++step) {
      write_random_batch(bound.executor(), c, step);
      for (const program::Value& v : bound.program().values)
        if (v.name.ends_with(".routing"))
          for (int64_t t = 0; t < v.shape[0]; ++t)
            for (size_t k = 0; k < 2; ++k)
              static_cast<int32_t*>(bound.executor().data(v.name))[t * 2 + static_cast<int64_t>(k)] = used[k];
      const auto before = as_doubles(snapshot(bound).at("layers.1.experts.up.weight"));
      interpret::RunOptions options;
      options.poison = true;
      bound.executor().run(options);
      ASSERT_EQ(*static_cast<const int32_t*>(bound.executor().data("commit")), 1);
      const auto after = as_doubles(snapshot(bound).at("layers.1.experts.up.weight"));
      const auto grad =
          as_doubles(gradients(bound.program(), bound.executor()).at("layers.1.experts.up.weight.grad"));
      const size_t per_expert = grad.size() / 5;
      for (size_t i = 0; i < grad.size(); ++i) {
        const int32_t expert = static_cast<int32_t>(i / per_expert);
        if (expert == used[0] || expert == used[1]) continue;
        ASSERT_EQ(grad[i], 0.0) << "expert " << expert;
        ASSERT_NEAR(after[i], before[i] * (1 - 0.5 * 0.25), 1e-15) << "expert " << expert;
      }
    }
  }
}

}  // namespace pleat::train::testing
