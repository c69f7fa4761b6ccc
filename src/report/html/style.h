// The style sheet and the hover script of the report page, as text.
#pragma once

#include <string_view>

namespace pleat::report::html {

extern const std::string_view kStyle;
// Hover only: everything it shows is in the page without it too.
extern const std::string_view kScript;

}  // namespace pleat::report::html
