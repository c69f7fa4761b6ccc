#include "train/stop_signal.h"

#include <csignal>

namespace pleat::train {
namespace {

volatile std::sig_atomic_t stop_asked = 0;
struct sigaction old_term, old_int;

extern "C" void ask_to_stop(int) { stop_asked = 1; }

}  // namespace

StopSignal::StopSignal() {
  stop_asked = 0;
  struct sigaction action {};
  action.sa_handler = ask_to_stop;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // a write of the last save is not to be cut short
  sigaction(SIGTERM, &action, &old_term);
  sigaction(SIGINT, &action, &old_int);
}

StopSignal::~StopSignal() {
  sigaction(SIGTERM, &old_term, nullptr);
  sigaction(SIGINT, &old_int, nullptr);
}

bool StopSignal::asked() { return stop_asked != 0; }

}  // namespace pleat::train
