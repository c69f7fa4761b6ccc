// How much longer a step of a tokenizer file may make a text. A few rules in a file can make gigabytes of a
// short text. Real ones stay far below: the longest single character of NFKC becomes 11 times as long, a marked
// space 3 times.
#pragma once

#include <cstddef>

#include "base/error.h"

namespace pleat::data {

constexpr size_t kMostGrowth = 64;
constexpr size_t kGrowthOfShortText = 4096;

// `part`: "normalizer", "decoder".
inline void check_growth(const char* part, size_t before, size_t now) {
  if (now > kMostGrowth * before + kGrowthOfShortText)
    base::fail(
        "the tokenizer's {} makes more than {} bytes of a text of {}; at most {} times its length and {} "
        "bytes more are allowed",
        part, kMostGrowth * before + kGrowthOfShortText, before, kMostGrowth, kGrowthOfShortText);
}

}  // namespace pleat::data
