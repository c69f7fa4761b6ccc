// What a step that cuts text does with the places its pattern finds.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/pre_tokenizer.h"

namespace pleat::data {

enum class SplitBehavior { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };

// By the name tokenizer files use; throws for any other.
SplitBehavior split_behavior_of(const std::string& name, const std::string& where);

struct SplitPart {
  size_t begin, end;
  bool is_match;
};

// Parts in order to pieces in order, for the three behaviours that join parts.
std::vector<SplitPart> joined_parts(std::vector<SplitPart> parts, SplitBehavior behavior);

// Hands on the pieces of `piece`. find(visit) must call visit(begin, end, is_match) over all of it, in order.
template <class Find>
void split(std::string_view piece, bool at_start, SplitBehavior behavior, bool invert, PieceSink& sink,
           const Find& find) {
  const auto hand_on = [&](size_t begin, size_t end) {
    if (end > begin) sink.take(piece.substr(begin, end - begin), at_start && begin == 0);
  };
  if (behavior == SplitBehavior::Isolated || behavior == SplitBehavior::Removed) {
    find([&](size_t begin, size_t end, bool is_match) {
      if (behavior == SplitBehavior::Isolated || is_match == invert) hand_on(begin, end);
    });
    return;
  }
  std::vector<SplitPart> parts;
  find([&](size_t begin, size_t end, bool is_match) { parts.push_back({begin, end, is_match != invert}); });
  for (const SplitPart& part : joined_parts(std::move(parts), behavior)) hand_on(part.begin, part.end);
}

}  // namespace pleat::data
