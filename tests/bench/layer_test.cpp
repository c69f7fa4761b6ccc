// The benchmark of one MoE layer, on the CPU: it is a whole program, its gradients are those of the layer,
// and a forced load is the load that was asked for.
#include "bench/layer_bench.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "interpret/check/check.h"
#include "model/block/forced_load.h"
#include "model/parameters.h"
#include "schedule/build.h"

namespace pleat::bench {
namespace {

LayerOptions on_cpu() {
  LayerOptions options;
  options.gpu = false;
  options.threads = 2;
  options.repeats = 3;
  options.check_finite = true;
  return options;
}

TEST(LayerBench, MeasuresForwardAndBackward) {
  const LayerResult r = bench_layer({"small", 300, 48, 24, 8, 2}, on_cpu());
  EXPECT_GT(r.forward_seconds, 0);
  EXPECT_GT(r.both_seconds, 0);
  const double flops = 6.0 * 300 * 2 * 48 * 24;
  EXPECT_NEAR(r.forward_rate, flops / r.forward_seconds, 1e-9 * r.forward_rate);
  EXPECT_NEAR(r.both_rate, 3 * flops / r.both_seconds, 1e-9 * r.both_rate);
  EXPECT_GE(r.max_over_mean, 1);
  EXPECT_LT(r.max_over_mean, 2);
  // Every product of the layer, counted as the model's FLOPs are, and the router's beside them.
  double experts = 0;
  std::vector<std::string> names;
  for (const OperationTime& t : r.operations) {
    names.push_back(t.name);
    if (t.name.find("expert") != std::string::npos) experts += t.flops;
    EXPECT_EQ(t.count, 1) << t.name;
  }
  EXPECT_NEAR(experts, 3 * flops, 1e-9 * flops);
  std::sort(names.begin(), names.end());
  const std::vector<std::string> all = {
      "dgrad combine",       "dgrad expert_act",  "dgrad expert_down", "dgrad expert_up",   "dgrad permute",
      "dgrad router_choose", "dgrad router_gate", "fwd combine",       "fwd dispatch_plan", "fwd expert_act",
      "fwd expert_down",     "fwd expert_up",     "fwd permute",       "fwd router_choose", "fwd router_gate",
      "wgrad expert_down",   "wgrad expert_up",   "wgrad router_gate"};
  EXPECT_EQ(names, all);
}

TEST(LayerBench, NothingButSeedAndLoadTravels) {
  for (const double skew : {0.0, 2.0}) {
    LayerOptions options;  // as on a GPU; only built here
    options.skew = skew;
    const config::Config config = layer_config({"small", 64, 32, 16, 8, 2}, options);
    const program::Program p =
        schedule::build_moe_layer(config, model::make_parameters(config), schedule::LayerPart::Both);
    EXPECT_TRUE(interpret::check(p).ok());
    std::vector<std::string> inputs, results;
    for (const program::Value& v : p.values) {
      if (v.life == program::Life::Input) inputs.push_back(v.name);
      if (v.life == program::Life::Result) results.push_back(v.name);
      if (v.name.ends_with(".grad")) {
        EXPECT_EQ(v.dtype, tensor::Dtype::BF16) << v.name;
      }
      EXPECT_NE(v.owner, program::Owner::Optimizer) << v.name;
      EXPECT_FALSE(v.name.starts_with("embedding") || v.name.find("attn") != std::string::npos) << v.name;
    }
    EXPECT_EQ(inputs, skew > 0 ? std::vector<std::string>{"rng"} : std::vector<std::string>{});
    EXPECT_EQ(results, std::vector<std::string>{"L0.load"});
  }
}

TEST(LayerBench, ForcedLoadIsWhatWasAsked) {
  for (const auto& [experts, top_k] : {std::pair<int64_t, int64_t>{8, 2}, {32, 4}})
    for (const double skew : {1.0, 2.0, 3.5, 4.0}) {
      LayerOptions options = on_cpu();
      options.skew = skew;
      const int64_t T = 6000;
      const LayerResult r = bench_layer({"small", T, 8, 4, experts, top_k}, options);
      // Random rows: the fullest of balanced experts has a few standard deviations more than the mean.
      const double mean = double(T * top_k) / double(experts);
      EXPECT_NEAR(r.max_over_mean, skew, 4 * std::sqrt(skew / mean))
          << experts << " experts, top " << top_k << ", asked " << skew;
    }
}

TEST(LayerBench, BiasOfALoadIsMonotonicAndKnownAtTheEnds) {
  EXPECT_EQ(model::bias_of_load(64, 8, 1), 0);
  double last = 0;
  for (const double load : {1.5, 2.0, 4.0, 6.0, 7.9, 8.0}) {
    const double bias = model::bias_of_load(64, 8, load);
    EXPECT_GT(bias, last);
    last = bias;
  }
  // Of two experts the loaded one wins with probability P(N(0, 2) < bias) = load / 2.
  EXPECT_NEAR(model::bias_of_load(2, 1, 1.5), 0.6744897501960817 * std::sqrt(2.0), 1e-6);
}

TEST(LayerBench, ShapesAreParsedOrRefused) {
  const LayerShape s = parse_layer_shape("512,64,32,8,2");
  EXPECT_EQ(s.tokens, 512);
  EXPECT_EQ(s.hidden, 64);
  EXPECT_EQ(s.ffn, 32);
  EXPECT_EQ(s.experts, 8);
  EXPECT_EQ(s.top_k, 2);
  for (const char* text : {"", "1,2,3,4", "1,2,3,4,5,6", "1,2,3,4,", "0,2,3,4,5", "1,2,x,4,5", "1,2,3,4,5 "})
    EXPECT_THROW(parse_layer_shape(text), base::Error) << text;
  EXPECT_THROW(layer_config({"too many", 8, 8, 8, 4, 5}, on_cpu()), base::Error);
  LayerOptions skewed = on_cpu();
  skewed.skew = 5;
  EXPECT_THROW(layer_config({"too loaded", 8, 8, 8, 8, 2}, skewed), base::Error);
}

}  // namespace
}  // namespace pleat::bench
