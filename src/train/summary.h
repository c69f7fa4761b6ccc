// summary.json: what a run was, how it went, what it holds.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/vfs.h"
#include "train/run_history.h"

namespace pleat::train {

nlohmann::json run_summary(Trainer& trainer, const RunHistory& history,
                           const std::optional<EvalOutcome>& final_eval, const std::string& state_sha256,
                           base::ExitCode code, base::Vfs& vfs);

}  // namespace pleat::train
