#include "checkpoint/directory.h"

#include <algorithm>
#include <charconv>
#include <functional>

namespace pleat::checkpoint {

std::string step_name(int64_t step) { return fmt::format("step-{}", step); }

std::optional<int64_t> step_of(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = -1;
  const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  if (error != std::errc{} || step < 0 || step_name(step) != name) return std::nullopt;
  return step;
}

bool is_leftover(std::string_view name) {
  const size_t mark = name.find(".tmp-");
  if (mark == std::string_view::npos) return false;
  const std::string_view stem = name.substr(0, mark);
  return stem == kLatestName || stem == kBestName || step_of(stem).has_value();
}

Listing list_checkpoints(base::Vfs& vfs, const std::string& directory) {
  Listing listing;
  for (const std::string& name : vfs.list(directory)) {
    if (const std::optional<int64_t> step = step_of(name))
      listing.steps.push_back(*step);
    else if (is_leftover(name))
      listing.leftovers.push_back(name);
    else if (name == kLatestName)
      listing.has_latest = true;
  }
  std::sort(listing.steps.begin(), listing.steps.end(), std::greater<>());
  return listing;
}

}  // namespace pleat::checkpoint
