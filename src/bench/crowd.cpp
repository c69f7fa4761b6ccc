#include "bench/crowd.h"

#include <algorithm>
#include <barrier>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "bench/rank_bench.h"

namespace pleat::bench {
namespace {

// k threads with a rank each, which begin every step together. Kept between turns: what a step finds in memory is the
// same each time.
class Crowd {
 public:
  Crowd(const config::Config& config, int64_t threads) {
    for (int64_t k = 0; k < threads; ++k) ranks_.push_back(std::make_unique<RankStep>(config, 1, 0));
  }

  // A turn: a step to warm up, then so many that count, of every thread.
  void turn(int64_t steps) {
    std::barrier together(static_cast<std::ptrdiff_t>(ranks_.size()));
    std::mutex mutex;
    std::exception_ptr failure;
    const auto work = [&](RankStep& rank) {
      std::vector<double> mine;
      for (int64_t step = 0; step <= steps; ++step) {
        together.arrive_and_wait();
        try {
          rank.run();
          if (step > 0) mine.push_back(rank.executor().seconds());
        } catch (...) {
          const std::lock_guard lock(mutex);
          failure = std::current_exception();
        }
      }
      const std::lock_guard lock(mutex);
      seconds_.insert(seconds_.end(), mine.begin(), mine.end());
    };
    {
      std::vector<std::jthread> others;
      for (const auto& rank : ranks_) others.emplace_back([&work, &rank] { work(*rank); });
    }
    if (failure) std::rethrow_exception(failure);
  }

  double median() {
    std::sort(seconds_.begin(), seconds_.end());
    return seconds_[seconds_.size() / 2];
  }

 private:
  std::vector<std::unique_ptr<RankStep>> ranks_;
  std::vector<double> seconds_;
};

// Alone and together by turns: a machine that others use is now slow and now fast, and both see the same of it.
constexpr int kTurns = 7;

double crowd_times(const config::Config& config, Crowd& alone, int64_t threads, int64_t steps) {
  Crowd together(config, threads);
  for (int turn = 0; turn < kTurns; ++turn) alone.turn(steps), together.turn(steps);
  return together.median() / alone.median();
}

}  // namespace

std::vector<double> measure_crowd(const config::Config& config, int64_t cores, int64_t steps,
                                  const std::function<void(int64_t, double)>& measured) {
  PLEAT_CHECK(cores >= 1 && steps >= 1, "{} cores, {} steps", cores, steps);
  std::vector<double> out;
  Crowd alone(config, 1);
  for (int64_t k = 1; k <= cores;) {
    const double times = k == 1 ? 1.0 : crowd_times(config, alone, k, steps);
    const int64_t before = std::ssize(out);
    const double last = out.empty() ? times : out.back();
    for (int64_t i = before + 1; i <= k; ++i)
      out.push_back(i == k ? times : last + (times - last) * double(i - before) / double(k - before));
    if (measured) measured(k, times);
    if (k == cores) break;
    k = k < 8 ? k + 1 : std::min(2 * k, cores);
  }
  return out;
}

}  // namespace pleat::bench
