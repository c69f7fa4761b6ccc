#include "data/json_error.h"

#include "base/error.h"

namespace pleat::data {

std::string printable_json(std::string_view text, size_t max_shown) {
  std::string shown(text.substr(0, max_shown));
  for (char& c : shown)
    if (c < 0x20 || c > 0x7e) c = '?';
  if (text.size() > max_shown) shown += "...";
  return shown;
}

void fail_broken_json(std::string_view where, size_t position, std::string_view reason) {
  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ...": the line is ours.
  if (const size_t colon = reason.find(": "); colon != std::string_view::npos)
    reason.remove_prefix(colon + 2);
  base::fail("{}: broken JSON at column {}: {}", where, position, printable_json(reason));
}

}  // namespace pleat::data
