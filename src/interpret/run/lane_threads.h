// Every lane of a program as a thread of its own, ordered only by the data edges of the program.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "program/program.h"

namespace pleat::interpret {

class LaneThreads {
 public:
  explicit LaneThreads(const program::Program& program);  // outlives this

  // Calls run_stage once per stage: those of a lane one after the other, each when all stages it depends on
  // have returned; with random pauses before them drawn from delay_seed (0: none). The first error of a lane
  // ends the others at their next stage and is thrown when all have ended; `failed` is called with its text
  // at once, since another lane may wait inside a call for a rank that waits for this lane.
  void run(uint64_t delay_seed, const std::function<void(program::StageId)>& run_stage,
           const std::function<void(const std::string& why)>& failed);

 private:
  struct Work;
  void run_lane(int lane, const Work& work);
  void lane_failed(const std::string& why, const Work& work);

  const program::Program& program_;
  std::vector<std::vector<program::StageId>> waits_;  // stages of other lanes to wait for
  std::vector<char> done_;
  std::mutex mutex_;
  std::condition_variable progress_;
  std::exception_ptr failure_;
};

}  // namespace pleat::interpret
