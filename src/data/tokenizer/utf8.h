// UTF-8: broken input made whole, code points read and written.
//
// Everything behind replace_broken_utf8 may rely on valid UTF-8: the pattern matcher runs without its own
// check.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pleat::data {

bool is_valid_utf8(std::string_view bytes);

// Each maximal part of a character that cannot be completed becomes one U+FFFD, as in the Unicode standard's
// recommended practice and in Python's bytes.decode("utf-8", errors="replace").
std::string replace_broken_utf8(std::string_view bytes);

// `bytes` itself when it is valid; else `storage` is filled with the replaced text and returned.
std::string_view as_valid_utf8(std::string_view bytes, std::string& storage);

// The code point at `at`, which moves behind it. `text` must be valid and `at` at a character.
inline uint32_t next_code_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  const uint32_t first = byte(at);
  if (first < 0x80) {
    at += 1;
    return first;
  }
  if (first < 0xe0) {
    at += 2;
    return (first & 0x1f) << 6 | (byte(at - 1) & 0x3f);
  }
  if (first < 0xf0) {
    at += 3;
    return (first & 0x0f) << 12 | (byte(at - 2) & 0x3f) << 6 | (byte(at - 1) & 0x3f);
  }
  at += 4;
  return (first & 0x07) << 18 | (byte(at - 3) & 0x3f) << 12 | (byte(at - 2) & 0x3f) << 6 |
         (byte(at - 1) & 0x3f);
}

// Where the character before `at` starts; `at` > 0.
inline size_t previous_character(std::string_view text, size_t at) {
  do --at;
  while ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
  return at;
}

void append_code_point(std::string& out, uint32_t code_point);

// The White_Space property.
bool is_white_space(uint32_t code_point);

// For error messages: at most `limit` bytes, everything but printable ASCII shown as '?'.
std::string shown(std::string_view text, size_t limit = 60);

}  // namespace pleat::data
