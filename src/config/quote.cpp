#include "config/quote.h"

namespace pleat::config {

std::string printable(std::string_view text) {
  constexpr size_t kMost = 80;
  std::string out;
  for (const char c : text.substr(0, kMost)) out += c >= 0x20 && c < 0x7f ? c : '?';
  if (text.size() > kMost) out += "...";
  return out;
}

std::string quote(std::string_view text) { return "\"" + printable(text) + "\""; }

}  // namespace pleat::config
