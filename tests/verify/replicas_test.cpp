// Replicas stay the same; experts and ranks without tokens hang no run, and their gradients are zeros, not what the
// memory held.
#include <cmath>

#include "base/error.h"
#include "train/learning_rate.h"
#include "verify/verify_support.h"

namespace pleat::verify {
namespace {

TEST(Replicas, ReplicasAreTheSameAfterEveryStep) {
  for (const int k : {1, 2}) {
    const config::Config c = small_model({fmt::format("moe.top_k={}", k), "moe.pre_softmax=true",
                                          "train.seq_len=8", "train.num_microbatches=2"});
    RunOptions options;
    options.weights_each_step = true;
    const LayoutRun reference = run_on(c, {}, options);
    for (const Axes& axes :
         {Axes{2}, Axes{2, 1, 1, 1, 2}, Axes{4, 1, 1, 1, 2, 2}, Axes{1, 2, 2, 1, 4}, Axes{2, 1, 2, 2, 2}}) {
      const model::Mesh mesh = mesh_of(axes);
      SCOPED_TRACE(text_of(mesh));
      const LayoutRun run = run_on(c, mesh, options);  // throws where ranks disagree
      EXPECT_EQ(difference(c, reference, run), "");
      for (size_t s = 0; s < 3; ++s)
        for (const auto& [name, weights] : reference.steps[s].weights)
          for (size_t i = 0; i < weights.size(); ++i)
            ASSERT_NEAR(run.steps[s].weights.at(name)[i], weights[i], 1e-10) << name << " step " << s + 1;
    }
  }
}

TEST(Replicas, DriftIsNoticedInTheStepItHappens) {
  const config::Config c = small_model({"train.seq_len=8", "train.num_microbatches=2"});
  RunOptions options;
  options.weights_each_step = true;
  options.num_steps = 1;
  options.fault = Fault::Drift;
  try {
    run_on(c, mesh_of({2, 1, 2, 1, 2, 1}), options);
    FAIL() << "nobody noticed";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("router.weight: element 0 is "), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("on another"), std::string::npos) << e.what();
  }
}

// Experts that no token may choose.
void expect_idle(const config::Config& c, const std::vector<int>& idle) {
  RunOptions options;
  options.weights_each_step = true;
  options.weight = [&](const model::Parameter& p, int64_t i, double initial) {
    if (!p.name.ends_with("router.bias")) return initial;
    return std::find(idle.begin(), idle.end(), i) != idle.end() ? -1e3 : 0.0;
  };
  const LayoutRun reference = run_on(c, {}, options);
  std::vector<model::Mesh> meshes;
  for (const Axes& axes : {Axes{1, 1, 4, 1, 4, 1}, Axes{4, 1, 1, 1, 4, 1}, Axes{2, 1, 2, 2, 2, 2}})
    for (const auto dispatcher : {model::Dispatcher::AllToAll, model::Dispatcher::AllGather})
      meshes.push_back(mesh_of(axes)), meshes.back().dispatcher = dispatcher;
  for (const model::Mesh& mesh : meshes) {
    SCOPED_TRACE(text_of(mesh));
    const LayoutRun run = run_on(c, mesh, options);
    EXPECT_EQ(difference(c, reference, run), "");
    for (size_t s = 0; s < run.steps.size(); ++s) {
      const double kept = 1 - train::learning_rate(c, static_cast<int64_t>(s) + 1) * c.optimizer.weight_decay;
      for (const auto& [layer, results] : run.steps[s].layers)
        for (const int e : idle) ASSERT_EQ(results.load[size_t(e)], 0);
      for (const auto& [name, gradient] : run.steps[s].gradients) {
        if (name.find("experts.") == std::string::npos) continue;
        const size_t size = gradient.size() / size_t(c.moe.num_experts);
        for (const int e : idle)
          for (size_t i = size * size_t(e); i < size * size_t(e + 1); ++i) {
            ASSERT_EQ(gradient[i], 0) << name;
            if (s == 0) continue;
            const double before = run.steps[s - 1].weights.at(name)[i];
            ASSERT_NE(before, 0);
            ASSERT_NEAR(run.steps[s].weights.at(name)[i] / before, kept, 1e-14) << name;
          }
      }
      ASSERT_LT(kept, 1);
    }
  }
}

config::Config routed_by_bias(std::vector<std::string> more) {
  more.insert(more.end(), {"moe.router_bias=true", "train.seq_len=8", "moe.load_balancing=[\"none\"]"});
  return small_model(more);
}

TEST(IdleExperts, OneExpertWithoutTokens) { expect_idle(routed_by_bias({}), {3}); }
TEST(IdleExperts, OneRankWithoutTokens) { expect_idle(routed_by_bias({}), {2, 3}); }
TEST(IdleExperts, AllButOneExpertWithoutTokens) {
  expect_idle(routed_by_bias({"moe.top_k=1", "moe.pre_softmax=true"}), {0, 1, 2, 3, 4, 6, 7});
}

TEST(DirtyMemory, DirtyMemoryChangesNothing) {
  for (const char* more : {"moe.capacity_factor=0.75", "moe.capacity_factor=0"})
    for (const char* pad : {"moe.pad_to_capacity=true", "moe.pad_to_capacity="}) {
      std::vector<std::string> sets = {"train.seq_len=8"};
      if (std::string(more) == "moe.capacity_factor=0.75") sets.insert(sets.end(), {more, pad});
      const config::Config c = small_model(sets);
      for (const Axes& axes : {Axes{1, 1, 2, 1, 2, 1}, Axes{2, 2, 1, 1, 2, 2}, Axes{2, 1, 2, 2, 4, 1}})
        for (const auto dispatcher : {model::Dispatcher::AllToAll, model::Dispatcher::AllGather}) {
          model::Mesh mesh = mesh_of(axes);
          mesh.dispatcher = dispatcher;
          SCOPED_TRACE(text_of(mesh));
          RunOptions options;
          const LayoutRun clean = run_on(c, mesh, options);
          options.poison = true;
          const Comparison result = compare(clean, run_on(c, mesh, options), model::make_parameters(c));
          EXPECT_TRUE(result.bitwise) << result.verdict(0);
          EXPECT_TRUE(std::isfinite(clean.steps[2].norm));
        }
    }
}

}  // namespace
}  // namespace pleat::verify
