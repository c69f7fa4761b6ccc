#include "train/stop_signal.h"

#include <unistd.h>

#include <csignal>
#include <ctime>

#include "base/error.h"

namespace pleat::train {
namespace {

// Launchers and terminals send one request several times over; later ones are meant.
constexpr time_t kSameRequestSeconds = 3;

volatile std::sig_atomic_t stop_asked = 0;
volatile time_t first_asked = 0;
constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP};
struct sigaction old_actions[std::size(kSignals)];

time_t now_seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

// Only what a signal handler may do.
extern "C" void ask_to_stop(int) {
  if (!stop_asked) {
    first_asked = now_seconds();
    stop_asked = 1;
  } else if (now_seconds() - first_asked >= kSameRequestSeconds) {
    _exit(static_cast<int>(base::ExitCode::Retry));
  }
}

}  // namespace

StopSignal::StopSignal() {
  stop_asked = 0;
  struct sigaction action {};
  action.sa_handler = ask_to_stop;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // a write of the last save is not to be cut short
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], nullptr, &old_actions[i]);
    // Under nohup a run is to outlive its terminal.
    if (kSignals[i] == SIGHUP && old_actions[i].sa_handler == SIG_IGN) continue;
    sigaction(kSignals[i], &action, nullptr);
  }
}

StopSignal::~StopSignal() {
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &old_actions[i], nullptr);
}

bool StopSignal::asked() { return stop_asked != 0; }

}  // namespace pleat::train
