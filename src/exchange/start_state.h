// The state a run begins with when its weights come from elsewhere: weights and correction biases, everything
// else zero. Saved as a checkpoint of step 0 that any data may follow.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "config/config.h"
#include "model/parameter.h"

namespace pleat::exchange {

class StartState {
 public:
  // `config` is resolved. Memory: the weights, and zeros as long as the largest parameter.
  StartState(const config::Config& config, const std::vector<model::Parameter>& table);
  // Weights, what narrow ones leave, correction biases: to be filled; zero until then.
  const std::vector<checkpoint::Target>& targets() const { return targets_; }
  // Into config.checkpoint.dir, which is made.
  checkpoint::SaveResult save() const;

 private:
  config::Config config_;
  std::vector<std::vector<std::byte>> owned_;
  std::vector<std::byte> zeros_;
  std::vector<checkpoint::Target> targets_;
  checkpoint::StateView view_;
};

}  // namespace pleat::exchange
