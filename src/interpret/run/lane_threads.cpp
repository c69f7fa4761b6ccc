#include "interpret/run/lane_threads.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/rng.h"
#include "program/order.h"

namespace pleat::interpret {

using program::StageId;

struct LaneThreads::Work {
  uint64_t delay_seed;
  const std::function<void(StageId)>& run_stage;
  const std::function<void(const std::string&)>& failed;
};

LaneThreads::LaneThreads(const program::Program& p) : program_(p), waits_(program::data_edges(p)) {
  for (size_t s = 0; s < waits_.size(); ++s)
    std::erase_if(waits_[s],
                  [&](StageId w) { return p.stages[static_cast<size_t>(w)].lane == p.stages[s].lane; });
}

void LaneThreads::run(uint64_t delay_seed, const std::function<void(StageId)>& run_stage,
                      const std::function<void(const std::string& why)>& failed) {
  done_.assign(program_.stages.size(), 0);
  failure_ = nullptr;
  const Work work{delay_seed, run_stage, failed};
  std::vector<std::thread> threads;
  for (int lane = 0; lane < static_cast<int>(program_.lanes.size()); ++lane)
    threads.emplace_back([this, &work, lane] { run_lane(lane, work); });
  for (std::thread& t : threads) t.join();
  if (failure_) std::rethrow_exception(failure_);
}

void LaneThreads::lane_failed(const std::string& why, const Work& work) {
  {
    std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = std::current_exception();
  }
  progress_.notify_all();
  work.failed(why);
}

void LaneThreads::run_lane(int lane, const Work& work) {
  const base::RandomStream random(work.delay_seed, base::RandomUse::Test, 0, static_cast<uint32_t>(lane));
  for (size_t s = 0; s < program_.stages.size(); ++s) {
    if (program_.stages[s].lane != lane) continue;
    {
      std::unique_lock lock(mutex_);
      progress_.wait(lock, [&] {
        return failure_ || std::all_of(waits_[s].begin(), waits_[s].end(),
                                       [&](StageId p) { return done_[static_cast<size_t>(p)]; });
      });
      if (failure_) return;
    }
    if (work.delay_seed)
      std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int>(random.uniform(s) * 150.0)));
    try {
      work.run_stage(static_cast<StageId>(s));
    } catch (const std::exception& e) {
      return lane_failed(e.what(), work);
    } catch (...) {
      return lane_failed("an error of unknown kind", work);
    }
    {
      std::lock_guard lock(mutex_);
      done_[s] = 1;
    }
    progress_.notify_all();
  }
}

}  // namespace pleat::interpret
