// Every lane of a program as a thread of its own, ordered only by the data edges of the program: what the program
// lets overlap overlaps. The threads are made once and wait between runs; the caller is the first lane.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "program/program.h"
#include "program/repeat.h"

namespace pleat::interpret {

class LaneThreads {
 public:
  explicit LaneThreads(const program::Program& program);  // outlives this
  ~LaneThreads();
  LaneThreads(const LaneThreads&) = delete;
  LaneThreads& operator=(const LaneThreads&) = delete;

  // Lanes that have stages.
  int num_lanes() const { return static_cast<int>(lanes_.size()); }

  // Calls run_stage once per stage of the range: those of a lane one after the other, each when all stages it depends on
  // have returned; with random pauses before them drawn from delay_seed (0: none). The first error of a lane
  // ends the others at their next stage and is thrown when all have ended; `failed` is called with its text
  // at once, since another lane may wait inside a call for a rank that waits for this lane. What stands before the
  // range counts as done.
  void run(program::StageRange range, uint64_t delay_seed,
           const std::function<void(program::StageId)>& run_stage,
           const std::function<void(const std::string& why)>& failed);

 private:
  // That many stages of the lane must have returned.
  struct Wait {
    size_t lane = 0;
    int64_t count = 0;
  };
  struct LaneStage {
    program::StageId id = -1;
    std::vector<Wait> waits;  // of other lanes; what an earlier wait of this lane implies is left out
  };
  struct Lane {
    std::vector<LaneStage> stages;
    std::atomic<int64_t> returned{0};
    std::thread thread;  // none for the first
  };
  struct Work {
    program::StageRange range;
    uint64_t delay_seed;
    const std::function<void(program::StageId)>& run_stage;
    const std::function<void(const std::string&)>& failed;
  };
  // Position of the first stage of a lane that is not before `stage`.
  static size_t position(const Lane& lane, program::StageId stage);
  void start();
  void wait_for_work(size_t lane);
  void run_lane(size_t lane);
  bool run_stages(size_t lane);
  void lane_failed(const std::string& why);

  std::vector<std::unique_ptr<Lane>> lanes_;
  const Work* work_ = nullptr;
  std::atomic<int64_t> round_{0};    // runs begun
  std::atomic<int64_t> running_{0};  // lanes that have not ended this one
  std::atomic<bool> has_failed_{false}, stop_{false};
  std::mutex mutex_;  // of failure_
  std::exception_ptr failure_;
};

}  // namespace pleat::interpret
