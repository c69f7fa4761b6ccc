// The ceiling of a run with several ranks.
#include "device/cpu/gemm_rate.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace pleat::device {
namespace {

TEST(GemmRate, OfSeveralRanksTakesTheTimeBetweenTwoMeetings) {
  Pool pool(1);
  int meetings = 0;
  // The others are late at the second meeting of every run.
  const std::vector<double> rates = measure_gemm_rates(pool, tensor::Dtype::F32, [&] {
    if (++meetings % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
  EXPECT_EQ(meetings, 2 * int(rates.size()));
  for (const double rate : rates) {
    EXPECT_GT(rate, 0);
    EXPECT_LE(rate, 2.0 * 512 * 512 * 512 / 50e-3) << "one product in at least 50 ms";
  }
}

}  // namespace
}  // namespace pleat::device
