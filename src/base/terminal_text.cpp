#include "base/terminal_text.h"

#include <fmt/format.h>

#include <cstdint>

namespace pleat::base {
namespace {

struct Character {
  uint32_t code = 0;
  size_t length = 0;  // 0: the bytes end inside a character that may still become valid
  bool valid = false;
};

Character character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1, true};
  const size_t length = first >= 0xc2 && first < 0xe0   ? 2
                        : first >= 0xe0 && first < 0xf0 ? 3
                        : first >= 0xf0 && first < 0xf5 ? 4
                                                        : 0;
  if (length == 0) return {first, 1, false};
  uint32_t code = first & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if (at + i == text.size()) return {first, 0, false};
    if ((byte(i) & 0xc0) != 0x80) return {first, 1, false};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  if (overlong || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {first, 1, false};
  return {code, length, true};
}

bool is_hidden(uint32_t c) {
  return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0) || c == 0x61c ||
         (c >= 0x200e && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

// Appends what is shown of `text`; returns where an unfinished character begins.
size_t append_shown(std::string_view text, std::string& out) {
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    if (c.length == 0) return at;
    if (!c.valid || (c.code < 0x80 && is_hidden(c.code)))
      out += fmt::format("\\x{:02x}", c.code);
    else if (is_hidden(c.code))
      out += fmt::format("\\u{:04x}", c.code);
    else
      out.append(text, at, c.length);
    at += c.length;
  }
  return text.size();
}

}  // namespace

bool is_plain_line(std::string_view text) {
  return text.find_first_of("\n\t") == text.npos && terminal_text(text) == text;
}

std::string TerminalFilter::push(std::string_view piece) {
  pending_ += piece;
  std::string out;
  const size_t end = append_shown(pending_, out);
  pending_.erase(0, end);
  return out;
}

std::string TerminalFilter::finish() {
  std::string out;
  for (const char c : pending_) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  pending_.clear();
  return out;
}

std::string terminal_text(std::string_view text) {
  TerminalFilter filter;
  const std::string shown = filter.push(text);
  return shown + filter.finish();
}

}  // namespace pleat::base
