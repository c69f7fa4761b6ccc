// origin.json of a run that was started from weights (pleat train --init): where they came from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace pleat::run {

inline constexpr char kOriginName[] = "origin.json";

struct Origin {
  std::string path;          // of the run or model folder, absolute
  std::string asked_step;    // --step as given; empty for the newest and for a model folder
  int64_t step = -1;         // of the checkpoint; -1 for a model folder
  std::string state_sha256;  // of the checkpoint; of a model folder, of the state it became

  // Whether the same was asked for.
  bool same_request(const Origin& other) const {
    return path == other.path && asked_step == other.asked_step;
  }
  std::string text() const;  // "runs/a, step 12"
};

// Nothing when the run has none.
std::optional<Origin> read_origin(const std::string& run_folder);
void write_origin(const std::string& run_folder, const Origin& origin);

}  // namespace pleat::run
