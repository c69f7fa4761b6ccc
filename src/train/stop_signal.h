// SIGTERM, SIGINT and SIGHUP ask a run to stop: the handler sets a flag, the loop looks at it between steps.
// Asked again three seconds later or more, the process ends at once with ExitCode::Retry: what was saved
// before stays good. SIGHUP is left alone where it was ignored (nohup).
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
