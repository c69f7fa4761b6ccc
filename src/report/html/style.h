// The style sheet and the hover script of the report page, as text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace pleat::report::html {

extern const std::string_view kStyle;
// Classes of the style sheet: c1, c2, ... for the first kNumColours things, c0 for the others.
inline constexpr size_t kNumColours = 8;
std::string colour_class(size_t index);
// Hover only: everything it shows is in the page without it too.
extern const std::string_view kScript;

}  // namespace pleat::report::html
