// SIGTERM and SIGINT ask a run to stop: the handler only sets a flag, the loop looks at it between steps.
#pragma once

namespace pleat::train {

class StopSignal {
 public:
  StopSignal();   // installs the handlers
  ~StopSignal();  // restores what was there
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  static bool asked();
};

}  // namespace pleat::train
