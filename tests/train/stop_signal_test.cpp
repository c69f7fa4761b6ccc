#include "train/stop_signal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace pleat::train {
namespace {

// A run that hangs before it looks at the flag must not be beyond reach of everything but SIGKILL.
TEST(StopSignal, AskedAgainLaterAHangingRunEndsAtOnce) {
  EXPECT_EXIT(
      {
        const StopSignal signal;
        raise(SIGTERM);
        raise(SIGHUP);  // launchers send one request several times over
        if (!StopSignal::asked()) _exit(1);
        std::this_thread::sleep_for(std::chrono::milliseconds(4100));
        raise(SIGTERM);
        _exit(2);
      },
      ::testing::ExitedWithCode(75), "");
}

}  // namespace
}  // namespace pleat::train
