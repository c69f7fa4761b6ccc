// Ends the process when the library itself does not: starting and stopping MPI waits for every process of the
// world, before there is a flight recorder and after there was one.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace pleat::comm::mpi {

class Deadline {
 public:
  Deadline() = default;
  ~Deadline() { clear(); }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  // Unless cleared in time, `what` is printed and the process ends with code 75.
  void set(double seconds, std::string what);
  void clear();

 private:
  void wait(double seconds, const std::string& what);

  std::mutex mutex_;
  std::condition_variable wake_;
  bool cleared_ = false;
  std::thread thread_;
};

}  // namespace pleat::comm::mpi
