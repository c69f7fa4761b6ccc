#include "comm/mpi/deadline.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "base/error.h"

namespace pleat::comm::mpi {

void Deadline::set(double seconds, std::string what) {
  clear();
  cleared_ = false;
  thread_ = std::thread([this, seconds, what = std::move(what)] { wait(seconds, what); });
}

void Deadline::clear() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    cleared_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Deadline::wait(double seconds, const std::string& what) {
  std::unique_lock lock(mutex_);
  if (wake_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return cleared_; })) return;
  std::fflush(stdout);
  fmt::print(stderr, "pleat: stall: {} has waited {:g} s for the other processes\n", what, seconds);
  std::fflush(stderr);
  std::_Exit(static_cast<int>(base::ExitCode::Retry));
}

}  // namespace pleat::comm::mpi
