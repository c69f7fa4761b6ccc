// JSON text as a value that keeps the order of members. The text is hostile: nesting and the number of values
// are bounded, and a name that stands twice in an object is refused.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "data/template/value.h"

namespace pleat::data {

inline constexpr int64_t kMaxJsonValues = int64_t{1} << 20;

// Throws with `where` in front. With `keep`, other members of the outermost object are checked and dropped,
// whatever they hold.
TemplateValue value_from_json(std::string_view text, std::string_view where,
                              std::span<const std::string_view> keep = {});

// "null", "a boolean", "a number", "a string", "an array" or "an object".
const char* kind_of(const TemplateValue& value);

}  // namespace pleat::data
