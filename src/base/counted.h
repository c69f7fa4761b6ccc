// A number with its noun, for messages: "1 document", "3 documents", "2 sequences of 64 tokens".
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace pleat::base {

// `many` is `one` with an s where nothing else is said.
inline std::string counted(int64_t number, std::string_view one, std::string_view many = {}) {
  if (number == 1) return fmt::format("1 {}", one);
  return many.empty() ? fmt::format("{} {}s", number, one) : fmt::format("{} {}", number, many);
}

}  // namespace pleat::base
