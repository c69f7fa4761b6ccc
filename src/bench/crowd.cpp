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

// The median of all steps of all threads, which begin each step together.
double crowd_seconds(const config::Config& config, int64_t threads, int64_t steps) {
  std::vector<std::unique_ptr<RankStep>> ranks;
  for (int64_t k = 0; k < threads; ++k) ranks.push_back(std::make_unique<RankStep>(config, 1, 0));
  std::barrier together(static_cast<std::ptrdiff_t>(threads));
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<double> seconds;
  const auto work = [&](RankStep& rank) {
    std::vector<double> mine;
    for (int64_t step = 0; step <= steps; ++step) {
      together.arrive_and_wait();
      try {
        rank.run();
        if (step > 0) mine.push_back(rank.executor().seconds());  // the first one warms up
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
      }
    }
    const std::lock_guard lock(mutex);
    seconds.insert(seconds.end(), mine.begin(), mine.end());
  };
  {
    std::vector<std::jthread> others;
    for (const auto& rank : ranks) others.emplace_back([&work, &rank] { work(*rank); });
  }
  if (failure) std::rethrow_exception(failure);
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace

std::vector<double> measure_crowd(const config::Config& config, int64_t cores, int64_t steps,
                                  const std::function<void(int64_t, double)>& measured) {
  PLEAT_CHECK(cores >= 1 && steps >= 1, "{} cores, {} steps", cores, steps);
  std::vector<double> out;
  double alone = 0;
  for (int64_t k = 1; k <= cores;) {
    const double seconds = crowd_seconds(config, k, steps);
    if (k == 1) alone = seconds;
    const double times = k == 1 ? 1.0 : seconds / alone;
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
