// Weight decay of parameter groups against AdamW written down in float64: a group says how much, the switches
// decide whether a norm, a bias, a sink or an embedding decays at all.
#include <gtest/gtest.h>

#include <cmath>

#include "train/feed.h"
#include "train/train_support.h"

namespace pleat::train::testing {
namespace {

double decay_by_the_rules(const config::OptimizerConfig& o, const model::Parameter& p) {
  using C = model::ParameterClass;
  if (p.is_bias)
    return o.decay_biases ? o.groups.at(std::string(model::name_of(p.parameter_class))).weight_decay : 0;
  if (p.parameter_class == C::Norm) return o.decay_norms ? o.weight_decay : 0;
  const auto group = o.groups.find(std::string(model::name_of(p.parameter_class)));
  return group == o.groups.end() ? o.weight_decay : group->second.weight_decay;
}

// The largest difference of any weight from the reference after two steps.
double worst_difference(const config::Config& c, int& decayed_biases, int& kept_biases) {
  runtime::Programs programs(c, train_only());
  programs.initialize();
  Runtime bound(with_gradients_kept(schedule::build_training_step(c, programs.table())), 1);
  copy_state(programs, bound);
  std::map<std::string, std::vector<double>> m, v;
  double worst = 0;
  const config::OptimizerConfig& o = c.optimizer;
  for (int64_t step = 1; step <= 2; ++step) {
    const Snapshot before = snapshot(bound);
    write_random_batch(bound.executor(), c, step);
    runtime::write_hyper(bound.executor(), 0.05, step);
    bound.executor().run();
    const Snapshot after = snapshot(bound), grads = gradients(bound.program(), bound.executor());
    const double scale = static_cast<const double*>(bound.executor().data("grad_scale"))[1];
    for (const model::Parameter& p : programs.table()) {
      if (!p.tied_to.empty()) continue;
      const double decay = decay_by_the_rules(o, p);
      if (p.is_bias) ++(decay > 0 ? decayed_biases : kept_biases);
      const std::vector<double> w = doubles_of(before.at(p.name)), now = doubles_of(after.at(p.name)),
                                g = doubles_of(grads.at(p.name + ".grad"));
      m[p.name].resize(w.size()), v[p.name].resize(w.size());
      for (size_t i = 0; i < w.size(); ++i) {
        const double x = g[i] * scale;
        double &mi = m[p.name][i], &vi = v[p.name][i];
        mi = o.beta1 * mi + (1 - o.beta1) * x, vi = o.beta2 * vi + (1 - o.beta2) * x * x;
        const double m_hat = mi / (1 - std::pow(o.beta1, double(step))),
                     v_hat = vi / (1 - std::pow(o.beta2, double(step)));
        const double expected = w[i] * (1 - 0.05 * decay) - 0.05 * m_hat / (std::sqrt(v_hat) + o.eps);
        worst = std::max(worst, std::abs(expected - now[i]));
      }
    }
  }
  return worst;
}

const char* const kBiasesEverywhere = R"(
[optimizer.groups.attention]
weight_decay = 0.5
[optimizer.groups.router]
weight_decay = 0.25
[optimizer.groups.experts]
weight_decay = 0.75
)";

TEST(DecayGroups, AGroupsDecayNoLongerActsOnItsBiasesAndSinks) {
  const std::vector<std::string> biases = {"model.qkv_bias=true", "model.attn_out_bias=true",
                                           "model.attention_sinks=true", "moe.router_bias=true",
                                           "moe.expert_bias=true"};
  for (const char* decay : {"optimizer.decay_biases=false", "optimizer.decay_biases=true"}) {
    SCOPED_TRACE(decay);
    std::vector<std::string> sets = biases;
    sets.push_back(decay);
    config::Config c = small_config(kBiasesEverywhere, sets);
    c.model.init_std = 0.5;  // biases start at 0: decay shows in the second step, when they are large
    int decayed = 0, kept = 0;
    EXPECT_LT(worst_difference(c, decayed, kept), 1e-14);
    EXPECT_GT(c.optimizer.decay_biases ? decayed : kept, 10);
    EXPECT_EQ(c.optimizer.decay_biases ? kept : decayed, 0);
  }
}

TEST(DecayGroups, BiasesOfExpertsAloneCanDecay) {
  config::Config c = small_config("", {"moe.expert_bias=true", "optimizer.decay_biases=true"});
  EXPECT_TRUE(c.optimizer.decay_biases);
  c = small_config("", {"model.attention_sinks=true", "optimizer.decay_biases=true"});
  EXPECT_TRUE(c.optimizer.decay_biases);
  EXPECT_THROW(small_config("", {"optimizer.decay_biases=true"}), base::Error);
}

}  // namespace
}  // namespace pleat::train::testing
