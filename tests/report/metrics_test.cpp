#include "report/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "report/report_support.h"

namespace pleat::report {
namespace {

RouterHealth of(const std::vector<int64_t>& load, int layer = 0) {
  return router_health(layer, load, 0, {}, std::span<const float>());
}

TEST(RouterHealth, HandComputed) {
  const std::vector<int64_t> load = {10, 0, 30, 40};
  const std::vector<float> bias = {-0.5f, 0.25f, 0.125f, 0.0f};
  const RouterHealth health = router_health(7, load, 8, {6.5, 1.5}, bias);
  EXPECT_EQ(health.layer, 7);
  EXPECT_EQ(health.load, load);
  EXPECT_DOUBLE_EQ(health.max_over_mean, 2.0);
  EXPECT_DOUBLE_EQ(health.min_over_mean, 0.0);
  // Deviations -10, -20, 10, 20 from the mean 20: variance 250.
  EXPECT_DOUBLE_EQ(health.cv, std::sqrt(250.0) / 20.0);
  // Shares 1/8, 3/8, 1/2: (3/8 + 3/8 (3 - log2 3) + 1/2) bits of 2.
  EXPECT_NEAR(health.entropy, (0.375 + 0.375 * (3 - std::log2(3.0)) + 0.5) / 2, 1e-15);
  EXPECT_EQ(health.dead, 1);
  EXPECT_DOUBLE_EQ(health.dropped_share, 0.1);
  EXPECT_EQ(health.logit_max, 6.5);
  EXPECT_EQ(health.logit_rms, 1.5);
  EXPECT_EQ(health.bias_min, -0.5);
  EXPECT_EQ(health.bias_max, 0.25);
}

TEST(RouterHealth, Extremes) {
  const RouterHealth even = of(std::vector<int64_t>(7, 13));
  EXPECT_DOUBLE_EQ(even.max_over_mean, 1.0);
  EXPECT_DOUBLE_EQ(even.min_over_mean, 1.0);
  EXPECT_NEAR(even.entropy, 1.0, 1e-15);
  EXPECT_LE(even.entropy, 1.0);
  EXPECT_EQ(even.cv, 0.0);
  const RouterHealth one = of({0, 0, 64, 0});
  EXPECT_EQ(one.entropy, 0.0);
  EXPECT_EQ(one.max_over_mean, 4.0);
  EXPECT_EQ(one.dead, 3);
  EXPECT_EQ(of({5}).entropy, 1.0);
  const RouterHealth idle = of({0, 0});
  EXPECT_EQ(idle.dead, 2);
  EXPECT_EQ(idle.max_over_mean, 0.0);
  const std::vector<double> bias = {-1e-3, 2e-3};
  const std::vector<int64_t> load = {1, 1};
  EXPECT_EQ(router_health(0, load, 0, {}, bias).bias_max, 2e-3);
}

TEST(RouterHealth, BadInput) {
  const std::vector<int64_t> load = {1, 2}, negative = {1, -2};
  const std::vector<float> bias = {0.0f};
  const std::span<const float> none;
  EXPECT_EQ(message_of([&] { router_health(4, {}, 0, {}, none); }), "router health of layer 4: no experts");
  EXPECT_EQ(message_of([&] { router_health(4, negative, 0, {}, none); }),
            "router health of layer 4: negative load -2");
  EXPECT_EQ(message_of([&] { router_health(4, load, 4, {}, none); }),
            "router health of layer 4: 4 dropped of 3 assignments");
  EXPECT_EQ(message_of([&] { router_health(4, load, 0, {}, bias); }),
            "router health of layer 4: 1 bias values for 2 experts");
}

TEST(Balance, ThresholdsOnBothSides) {
  EXPECT_EQ(balance_of(of({149, 100, 100, 51})), Balance::Balanced);
  EXPECT_EQ(balance_of(of({150, 100, 100, 50})), Balance::Uneven);
  EXPECT_EQ(balance_of(of({125, 125, 125, 25})), Balance::Uneven);
  EXPECT_EQ(balance_of(of({199, 100, 51, 50})), Balance::Uneven);
  EXPECT_EQ(balance_of(of({200, 100, 50, 50})), Balance::Skewed);
  EXPECT_EQ(balance_of(of({12, 11, 9, 0})), Balance::Dead);    // mean 8
  EXPECT_EQ(balance_of(of({11, 11, 9, 0})), Balance::Skewed);  // mean 7.75: chance
  EXPECT_EQ(balance_of(of({50, 50, 0, 0})), Balance::Dead);    // worth exactly half of the experts
  EXPECT_EQ(balance_of(of({52, 48, 0, 0})), Balance::Collapsing);
  EXPECT_EQ(balance_of(of({0, 0, 0, 0})), Balance::Collapsing);
  RouterHealth broken = of({100, 100});
  broken.logit_max = std::nan("");
  EXPECT_EQ(balance_of(broken), Balance::NonFinite);
  EXPECT_EQ(name_of(Balance::NonFinite), "non-finite");
}

TEST(Verdict, WorstLayerSpeaks) {
  EXPECT_EQ(router_verdict({}).word, "");
  const std::vector<RouterHealth> layers = {
      of({100, 100, 100, 100}, 1), of({310, 30, 30, 30, 0, 0, 400, 0}, 17), of({130, 140, 130, 0}, 18)};
  const RouterVerdict verdict = router_verdict(layers);
  EXPECT_EQ(verdict.word, "collapsing");
  EXPECT_EQ(verdict.worst_layer, 17);
  EXPECT_EQ(verdict.text, "experts: worst layer 17, 4.0x, 3 dead (4 in all layers)");
  const RouterVerdict calm = router_verdict(std::span(layers).first(1));
  EXPECT_EQ(calm.word, "balanced");
  EXPECT_EQ(calm.text, "experts: worst layer 1, 1.0x, 0 dead");
}

}  // namespace
}  // namespace pleat::report
