// BEST in a directory of checkpoints: one line "step-N LOSS", the checkpoint with the least validation loss.
// It says which one stays beside the newest. Replaced as a whole.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/vfs.h"

namespace pleat::checkpoint {

struct Best {
  int64_t step = 0;
  double loss = 0;  // of the validation data, nats per token
};

// Nothing when there is no such file, it is damaged, or the checkpoint it names is not there: another one may
// become the best then.
std::optional<Best> read_best(base::Vfs& vfs, const std::string& directory);

// `taken`: names "<stem>.tmp-I" in use. Failures become warnings.
void write_best(base::Vfs& vfs, const std::string& directory, const Best& best,
                std::vector<std::string>& taken, std::vector<std::string>& warnings);

}  // namespace pleat::checkpoint
