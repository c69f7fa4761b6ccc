// How long the parts of a piece of work took, in the order they were done.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace pleat::base {

class Laps {
 public:
  using Lap = std::pair<std::string, double>;  // what was done, seconds

  // What was done since the last call, or since this was made.
  void done(std::string what) {
    const auto now = Clock::now();
    all_.emplace_back(std::move(what), std::chrono::duration<double>(now - last_).count());
    last_ = now;
  }
  // Somebody else's parts, of work that was done meanwhile. What is left of the time is the next part's.
  void take(const Laps& other) {
    for (const Lap& lap : other.all_) {
      all_.push_back(lap);
      last_ += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(lap.second));
    }
  }
  const std::vector<Lap>& all() const { return all_; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_ = Clock::now();
  std::vector<Lap> all_;
};

}  // namespace pleat::base
