// Names in a directory of checkpoints: step-N is a committed one; step-N.tmp-I, LATEST.tmp-I and BEST.tmp-I
// are what a save or a removal left behind when it was cut short, and are worth nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/vfs.h"

namespace pleat::checkpoint {

inline constexpr char kLatestName[] = "LATEST";
inline constexpr char kBestName[] = "BEST";

std::string step_name(int64_t step);
// Nothing unless `name` is exactly what step_name gives for some step.
std::optional<int64_t> step_of(std::string_view name);
bool is_leftover(std::string_view name);

struct Listing {
  std::vector<int64_t> steps;  // descending
  std::vector<std::string> leftovers;
  bool has_latest = false;
};
Listing list_checkpoints(base::Vfs& vfs, const std::string& directory);

}  // namespace pleat::checkpoint
