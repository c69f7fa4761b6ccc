// Foreign text in messages: short, and without bytes that would disturb a terminal or a log line.
#pragma once

#include <string>
#include <string_view>

namespace pleat::config {

// At most 80 bytes, control and non-ASCII bytes as '?', "..." where cut.
std::string printable(std::string_view text);
// The same in double quotes.
std::string quote(std::string_view text);

}  // namespace pleat::config
