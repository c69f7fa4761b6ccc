#include "data/tokenizer/split_behavior.h"

#include <algorithm>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {

SplitBehavior split_behavior_of(const std::string& name, const std::string& where) {
  if (name == "Removed") return SplitBehavior::Removed;
  if (name == "Isolated") return SplitBehavior::Isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::MergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::MergedWithNext;
  if (name == "Contiguous") return SplitBehavior::Contiguous;
  base::fail(
      "{}.behavior: \"{}\" is not supported; Removed, Isolated, MergedWithPrevious, MergedWithNext and "
      "Contiguous are",
      where, shown(name));
}

std::vector<SplitPart> joined_parts(std::vector<SplitPart> parts, SplitBehavior behavior) {
  const bool backwards = behavior == SplitBehavior::MergedWithNext;
  if (backwards) std::reverse(parts.begin(), parts.end());
  std::vector<SplitPart> out;
  bool previous = false;
  for (const SplitPart& part : parts) {
    const bool joins =
        behavior == SplitBehavior::Contiguous ? part.is_match == previous : part.is_match && !previous;
    if (joins && !out.empty()) {
      if (backwards)
        out.back().begin = part.begin;
      else
        out.back().end = part.end;
    } else {
      out.push_back(part);
    }
    previous = part.is_match;
  }
  if (backwards) std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace pleat::data
