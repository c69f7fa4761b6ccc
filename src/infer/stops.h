// Where generation ends, by what the user wrote: a text, or the spelling of a special token, which is no text and is
// matched by its id.
#pragma once

#include <string>
#include <vector>

#include "infer/vocabulary.h"

namespace pleat::infer {

struct Stops {
  std::vector<int32_t> tokens;
  std::vector<std::string> texts;
};

// Throws on an empty string, and on one that holds a special token and more: text and tokens are never matched
// together.
Stops make_stops(const std::vector<std::string>& given, const Vocabulary& vocabulary);

}  // namespace pleat::infer
