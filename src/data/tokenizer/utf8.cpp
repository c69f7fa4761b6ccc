#include "data/tokenizer/utf8.h"

#include <cstring>

namespace pleat::data {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// How many bytes at `at` belong together: a whole character (good) or the longest start of one (broken).
struct Step {
  size_t num_bytes;
  bool good;
};

Step step_at(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return {1, true};
  size_t length = 0;
  // The second byte has a narrower range after some first bytes: overlong forms, surrogates, above U+10FFFF.
  unsigned char low = 0x80, high = 0xbf;
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  } else {
    return {1, false};
  }
  for (size_t i = 1; i < length; ++i) {
    if (at + i >= bytes.size() || byte(at + i) < low || byte(at + i) > high) return {i, false};
    low = 0x80;
    high = 0xbf;
  }
  return {length, true};
}

// The first broken place at or after `at`, or the end.
size_t find_broken(std::string_view bytes, size_t at) {
  while (at < bytes.size()) {
    while (at + 8 <= bytes.size()) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, 8);
      if (word & 0x8080808080808080u) break;
      at += 8;
    }
    if (at >= bytes.size()) break;
    const Step step = step_at(bytes, at);
    if (!step.good) return at;
    at += step.num_bytes;
  }
  return bytes.size();
}

}  // namespace

bool is_valid_utf8(std::string_view bytes) { return find_broken(bytes, 0) == bytes.size(); }

std::string replace_broken_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() + bytes.size() / 8);
  for (size_t at = 0; at < bytes.size();) {
    const size_t broken = find_broken(bytes, at);
    text.append(bytes.substr(at, broken - at));
    at = broken;
    if (at < bytes.size()) {
      text.append(kReplacement);
      at += step_at(bytes, at).num_bytes;
    }
  }
  return text;
}

std::string_view as_valid_utf8(std::string_view bytes, std::string& storage) {
  if (is_valid_utf8(bytes)) return bytes;
  storage = replace_broken_utf8(bytes);
  return storage;
}

void append_code_point(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xc0 | c >> 6));
    out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xe0 | c >> 12));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else {
    out.push_back(static_cast<char>(0xf0 | c >> 18));
    out.push_back(static_cast<char>(0x80 | (c >> 12 & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
  }
}

bool is_white_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

std::string shown(std::string_view text, size_t limit) {
  std::string out(text.substr(0, limit));
  for (char& c : out)
    if (c < 0x20 || c > 0x7e) c = '?';
  if (text.size() > limit) out += "...";
  return out;
}

}  // namespace pleat::data
