// Finding what a mistyped word was meant to be.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace pleat::config {

// Insertions, deletions, substitutions and swaps of neighbours that turn a into b.
size_t edit_distance(std::string_view a, std::string_view b);

// The word of a non-empty list with the smallest distance; the first of several.
const std::string& nearest_word(std::string_view word, const std::vector<std::string>& words);

}  // namespace pleat::config
