// Text for HTML and SVG. Everything that comes from a file passes through escape(): stage names, run names
// and samples are hostile until then. Numbers go through px() so that markup never holds "nan" or an
// exponent.
#pragma once

#include <string>
#include <string_view>

namespace pleat::report::html {

// Safe as element content and inside a double-quoted attribute. Bytes that are no valid UTF-8, and control
// characters other than tab and newline, become U+FFFD.
std::string escape(std::string_view text);

// A coordinate with two decimals, trailing zeros cut. The value must be finite.
std::string px(double value);
std::string percent(double share);  // 0.125 -> "12.5%", four significant decimals

// At most `limit` characters, the last one "…" when something was cut. Not escaped.
std::string shorten(std::string_view text, size_t limit);

}  // namespace pleat::report::html
