#include "interpret/run/lane_threads.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "base/rng.h"
#include "program/order.h"

namespace pleat::interpret {

using program::StageId;

namespace {
constexpr int64_t kEnded = std::numeric_limits<int64_t>::max();  // of a lane that returns nothing any more
}

LaneThreads::LaneThreads(const program::Program& p) {
  std::vector<size_t> used(p.lanes.size(), p.lanes.size());  // lane of the program -> lane here
  for (const program::Stage& s : p.stages) used[static_cast<size_t>(s.lane)] = 0;
  for (size_t& lane : used) {
    if (lane != 0) continue;
    lane = lanes_.size();
    lanes_.push_back(std::make_unique<Lane>());
  }
  const program::EdgeList edges = program::edge_list(p);
  std::vector<int64_t> position(p.stages.size());
  // What a lane has waited for so far holds for all its later stages.
  std::vector<std::vector<int64_t>> seen(lanes_.size(), std::vector<int64_t>(lanes_.size(), 0));
  for (size_t s = 0; s < p.stages.size(); ++s) {
    const size_t lane = used[static_cast<size_t>(p.stages[s].lane)];
    LaneStage stage;
    stage.id = static_cast<StageId>(s);
    for (const StageId before : edges[s]) {
      const size_t other = used[static_cast<size_t>(p.stages[static_cast<size_t>(before)].lane)];
      const int64_t count = position[static_cast<size_t>(before)] + 1;
      if (other == lane || seen[lane][other] >= count) continue;
      seen[lane][other] = count;
      std::erase_if(stage.waits, [&](const Wait& w) { return w.lane == other; });
      stage.waits.push_back({other, count});
    }
    position[s] = static_cast<int64_t>(lanes_[lane]->stages.size());
    lanes_[lane]->stages.push_back(std::move(stage));
  }
}

LaneThreads::~LaneThreads() {
  stop_ = true;
  ++round_;
  round_.notify_all();
  for (const auto& lane : lanes_)
    if (lane->thread.joinable()) lane->thread.join();
}

void LaneThreads::start() {
  for (size_t lane = 1; lane < lanes_.size(); ++lane)
    if (!lanes_[lane]->thread.joinable())
      lanes_[lane]->thread = std::thread([this, lane] { wait_for_work(lane); });
}

void LaneThreads::wait_for_work(size_t lane) {
  for (int64_t round = 0;;) {
    round_.wait(round);
    round = round_;
    if (stop_) return;
    run_lane(lane);
  }
}

size_t LaneThreads::position(const Lane& lane, StageId stage) {
  const auto at = std::lower_bound(lane.stages.begin(), lane.stages.end(), stage,
                                   [](const LaneStage& s, StageId id) { return s.id < id; });
  return static_cast<size_t>(at - lane.stages.begin());
}

void LaneThreads::run(program::StageRange range, uint64_t delay_seed,
                      const std::function<void(StageId)>& run_stage,
                      const std::function<void(const std::string& why)>& failed) {
  const Work work{range, delay_seed, run_stage, failed};
  start();
  for (const auto& lane : lanes_) lane->returned = static_cast<int64_t>(position(*lane, range.first));
  failure_ = nullptr;
  has_failed_ = false;
  work_ = &work;
  running_ = num_lanes();
  ++round_;
  round_.notify_all();
  if (!lanes_.empty()) run_lane(0);
  for (int64_t left = running_; left > 0; left = running_) running_.wait(left);
  work_ = nullptr;
  if (failure_) std::rethrow_exception(failure_);
}

void LaneThreads::run_lane(size_t lane) {
  if (!run_stages(lane)) {
    // Whoever waits for this lane shall look up and see that the run has failed.
    lanes_[lane]->returned = kEnded;
    lanes_[lane]->returned.notify_all();
  }
  if (--running_ == 0) running_.notify_all();
}

void LaneThreads::lane_failed(const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = std::current_exception();
    has_failed_ = true;
  }
  work_->failed(why);
}

// False when this lane or another failed.
bool LaneThreads::run_stages(size_t lane_idx) {
  Lane& lane = *lanes_[lane_idx];
  const base::RandomStream random(work_->delay_seed, base::RandomUse::Test, 0,
                                  static_cast<uint32_t>(lane_idx));
  const size_t end = position(lane, work_->range.end);
  for (size_t s = position(lane, work_->range.first); s < end; ++s) {
    const LaneStage& stage = lane.stages[s];
    for (const Wait& wait : stage.waits) {
      std::atomic<int64_t>& returned = lanes_[wait.lane]->returned;
      for (int64_t now = returned; now < wait.count; now = returned) returned.wait(now);
    }
    if (has_failed_) return false;
    if (work_->delay_seed)
      std::this_thread::sleep_for(std::chrono::microseconds(
          static_cast<int>(random.uniform(static_cast<uint64_t>(stage.id)) * 150.0)));
    try {
      work_->run_stage(stage.id);
    } catch (const std::exception& e) {
      lane_failed(e.what());
      return false;
    } catch (...) {
      lane_failed("an error of unknown kind");
      return false;
    }
    ++lane.returned;
    lane.returned.notify_all();
  }
  return true;
}

}  // namespace pleat::interpret
