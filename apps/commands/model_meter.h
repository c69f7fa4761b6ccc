// Progress and stop of the commands that move whole models: bytes, rate and time left on standard error, and a request
// to stop (train/stop_signal.h) that is heard between blocks.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/save_streamed.h"
#include "commands/data.h"
#include "train/stop_signal.h"

namespace pleat::apps {

class ModelMeter {
 public:
  // `write`: what the first phase does ("importing"). `stopped`: what a stop leaves, for the message; empty: as in
  // StreamWatch. While this lives, signals ask to stop and do not kill; `in_training`: they do so already.
  explicit ModelMeter(std::string write, std::string stopped = "", bool in_training = false);
  ~ModelMeter() { finish(); }
  ModelMeter(const ModelMeter&) = delete;

  // This outlives what it is given to.
  checkpoint::StreamWatch watch();
  // Ends the line.
  void finish();

 private:
  void show(const checkpoint::StreamProgress& now);

  std::optional<train::StopSignal> signal_;
  std::string write_, stopped_;
  std::optional<Meter> meter_;  // of this phase
  checkpoint::StreamProgress last_;
};

// Stops as a training run does, and shows nothing.
checkpoint::StreamWatch quiet_watch();

}  // namespace pleat::apps
