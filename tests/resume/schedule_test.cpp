// The learning rate at the borders of every schedule.
#include <gtest/gtest.h>

#include <cmath>

#include "train/learning_rate.h"

namespace pleat::train {
namespace {

config::Config schedule(const std::string& name, int64_t warmup, int64_t steps, int64_t decay = 0) {
  config::Config c;
  c.optimizer.schedule = name;
  c.optimizer.lr = 1.0;
  c.optimizer.min_lr = 0.25;
  c.optimizer.warmup_steps = warmup;
  c.optimizer.decay_steps = decay;
  c.train.steps = steps;
  c.data.train = "x";
  return config::resolve(c);
}

TEST(LearningRate, WarmUpRisesFromTheFirstStepAndEndsAtTheTop) {
  for (const char* name : {"constant", "linear", "cosine", "wsd"}) {
    const config::Config c = schedule(name, 4, 20);
    EXPECT_EQ(learning_rate(c, 1), 0.25) << name;
    EXPECT_EQ(learning_rate(c, 2), 0.5) << name;
    EXPECT_EQ(learning_rate(c, 3), 0.75) << name;
    EXPECT_EQ(learning_rate(c, 4), 1.0) << name;
  }
}

TEST(LearningRate, Constant) {
  const config::Config c = schedule("constant", 0, 20);
  for (const int64_t step : {1, 10, 20, 1000}) EXPECT_EQ(learning_rate(c, step), 1.0);
}

TEST(LearningRate, Linear) {
  const config::Config c = schedule("linear", 4, 20);
  EXPECT_EQ(learning_rate(c, 5), 0.25 + 0.75 * 15 / 16);
  EXPECT_EQ(learning_rate(c, 12), 0.625);
  EXPECT_EQ(learning_rate(c, 19), 0.25 + 0.75 / 16);
  EXPECT_EQ(learning_rate(c, 20), 0.25);
  EXPECT_EQ(learning_rate(c, 21), 0.25);
  const config::Config shorter = schedule("linear", 0, 20, 8);
  EXPECT_EQ(learning_rate(shorter, 4), 0.625);
  EXPECT_EQ(learning_rate(shorter, 8), 0.25);
  EXPECT_EQ(learning_rate(shorter, 20), 0.25);
}

TEST(LearningRate, Cosine) {
  const config::Config c = schedule("cosine", 4, 20);
  EXPECT_NEAR(learning_rate(c, 8), 0.25 + 0.75 * (1 + std::sqrt(0.5)) / 2, 1e-15);
  EXPECT_NEAR(learning_rate(c, 12), 0.625, 1e-15);
  EXPECT_NEAR(learning_rate(c, 16), 0.25 + 0.75 * (1 - std::sqrt(0.5)) / 2, 1e-15);
  EXPECT_EQ(learning_rate(c, 20), 0.25);
  EXPECT_EQ(learning_rate(c, 40), 0.25);
}

TEST(LearningRate, WarmUpStableDecay) {
  const config::Config c = schedule("wsd", 2, 20, 4);
  EXPECT_EQ(learning_rate(c, 3), 1.0);
  EXPECT_EQ(learning_rate(c, 16), 1.0);
  EXPECT_EQ(learning_rate(c, 17), 0.8125);
  EXPECT_EQ(learning_rate(c, 18), 0.625);
  EXPECT_EQ(learning_rate(c, 20), 0.25);
  EXPECT_EQ(learning_rate(c, 21), 0.25);
  // The default: the last tenth.
  const config::Config derived = schedule("wsd", 0, 40);
  EXPECT_EQ(learning_rate(derived, 36), 1.0);
  EXPECT_EQ(learning_rate(derived, 38), 0.625);
  EXPECT_EQ(learning_rate(derived, 40), 0.25);
}

}  // namespace
}  // namespace pleat::train
