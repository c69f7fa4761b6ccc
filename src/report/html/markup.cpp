#include "report/html/markup.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "base/error.h"

namespace pleat::report::html {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Length of the valid UTF-8 character at the front of `text`, 0 when there is none (overlong forms,
// surrogates and values past U+10FFFF are not valid).
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const uint8_t second = byte(1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F)) return 0;
  if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) return 0;
  return length;
}

std::string trimmed(std::string text) {
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text == "-0" ? "0" : text;
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const char c = text.front();
    if (length == 0)
      out += kReplacement;
    else if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else if (length == 1 && c != '\n' && c != '\t' && (static_cast<uint8_t>(c) < 0x20 || c == 0x7F))
      out += kReplacement;
    else
      out += text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

std::string px(double value) {
  PLEAT_CHECK(std::isfinite(value), "a coordinate is {}", value);
  return trimmed(fmt::format("{:.2f}", value));
}

std::string percent(double share) {
  PLEAT_CHECK(std::isfinite(share), "a coordinate is {}", share);
  return trimmed(fmt::format("{:.4f}", share * 100)) + "%";
}

std::string shorten(std::string_view text, size_t limit) {
  size_t characters = 0, cut_at = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<uint8_t>(text[i]) & 0xC0) == 0x80) continue;
    if (characters == limit - 1) cut_at = i;
    if (characters++ == limit) return std::string(text.substr(0, cut_at)) + "…";
  }
  return std::string(text);
}

}  // namespace pleat::report::html
