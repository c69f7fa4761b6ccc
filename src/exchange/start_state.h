// The state a run begins with when its weights come from elsewhere: weights, what narrow ones leave, correction biases,
// and everything else zero. Saved as a checkpoint of step 0 that any data may follow, tensor by tensor; zeros take no
// room in it.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/save_streamed.h"
#include "config/config.h"
#include "exchange/start_weights.h"
#include "model/parameter.h"

namespace pleat::exchange {

class StartState {
 public:
  // `config` is resolved.
  StartState(const config::Config& config, const std::vector<model::Parameter>& table);
  // Weights, rests and correction biases, as the run has them.
  const std::vector<checkpoint::Expected>& weights() const { return weights_; }
  // Into config.checkpoint.dir, which is made. One that was cut short is gone on with (checkpoint/save_streamed.h). Throws
  // before the first byte where the disk has no room.
  checkpoint::SaveResult save(StartWeights& from, const checkpoint::StreamWatch& watch,
                              const checkpoint::SaveOptions& options = {}) const;

 private:
  config::Config config_;
  std::vector<checkpoint::Expected> weights_, others_;
};

}  // namespace pleat::exchange
