#include "data/template/python_text.h"

#include <fmt/format.h>
#include <unicode/ucasemap.h>
#include <unicode/uchar.h>
#include <unicode/ustring.h>

#include <charconv>
#include <cmath>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data::jinja {
namespace {

using CaseFunction = int32_t (*)(UChar*, int32_t, const UChar*, int32_t, const char*, UErrorCode*);

// Full case mapping: one letter may become several.
std::string map_case(std::string_view text, CaseFunction function) {
  bool ascii = true;
  for (const char c : text) ascii &= static_cast<unsigned char>(c) < 0x80;
  if (ascii) {
    std::string out(text);
    const bool up = function == &u_strToUpper;
    for (char& c : out)
      c = static_cast<char>(up ? (c >= 'a' && c <= 'z' ? c - 32 : c) : (c >= 'A' && c <= 'Z' ? c + 32 : c));
    return out;
  }
  PLEAT_CHECK(text.size() < size_t{1} << 29);
  UErrorCode status = U_ZERO_ERROR;
  std::vector<UChar> in(text.size() + 1);
  int32_t length = 0;
  u_strFromUTF8(in.data(), static_cast<int32_t>(in.size()), &length, text.data(),
                static_cast<int32_t>(text.size()), &status);
  std::vector<UChar> mapped(static_cast<size_t>(length) * 3 + 1);
  const int32_t mapped_length =
      function(mapped.data(), static_cast<int32_t>(mapped.size()), in.data(), length, "", &status);
  std::string out(static_cast<size_t>(mapped_length) * 3, '\0');
  int32_t bytes = 0;
  u_strToUTF8(out.data(), static_cast<int32_t>(out.size()), &bytes, mapped.data(), mapped_length, &status);
  if (U_FAILURE(status)) base::fail("letter case: {}", u_errorName(status));
  out.resize(static_cast<size_t>(bytes));
  return out;
}

std::string title_character(std::string_view character) {
  size_t at = 0;
  const uint32_t c = next_code_point(character, at);
  const auto titled = static_cast<uint32_t>(u_totitle(static_cast<UChar32>(c)));
  if (titled == c) {  // such as the sharp s, which has a full mapping only
    const std::string up = map_case(character, &u_strToUpper);
    if (length_of(up) < 2) return up;
    size_t first = 0;
    next_code_point(up, first);
    return up.substr(0, first) + map_case(std::string_view(up).substr(first), &u_strToLower);
  }
  std::string out;
  append_code_point(out, titled);
  return out;
}

bool is_cased(uint32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASED); }

bool is_printable(uint32_t c) {
  if (c == ' ') return true;
  switch (u_charType(static_cast<UChar32>(c))) {
    case U_CONTROL_CHAR:
    case U_FORMAT_CHAR:
    case U_SURROGATE:
    case U_PRIVATE_USE_CHAR:
    case U_UNASSIGNED:
    case U_LINE_SEPARATOR:
    case U_PARAGRAPH_SEPARATOR:
    case U_SPACE_SEPARATOR:
      return false;
    default:
      return true;
  }
}

bool is_of(uint32_t c, CharacterClass wanted) {
  const auto u = static_cast<UChar32>(c);
  const auto numeric = u_getIntPropertyValue(u, UCHAR_NUMERIC_TYPE);
  switch (wanted) {
    case CharacterClass::Digit:
      return numeric == U_NT_DECIMAL || numeric == U_NT_DIGIT;
    case CharacterClass::Alpha:
      return u_isalpha(u) != 0;
    case CharacterClass::Alnum:
      return u_isalpha(u) != 0 || numeric != U_NT_NONE;
    case CharacterClass::Space:
      return is_python_space(c);
    case CharacterClass::Upper:
      return u_hasBinaryProperty(u, UCHAR_UPPERCASE) != 0;
    case CharacterClass::Lower:
      return u_hasBinaryProperty(u, UCHAR_LOWERCASE) != 0;
  }
  return false;
}

}  // namespace

bool is_python_space(uint32_t c) { return (c >= 0x1c && c <= 0x1f) || is_white_space(c); }

size_t length_of(std::string_view text) {
  size_t n = 0;
  for (const char c : text) n += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return n;
}

std::vector<size_t> character_starts(std::string_view text) {
  std::vector<size_t> starts;
  starts.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) starts.push_back(i);
  starts.push_back(text.size());
  return starts;
}

size_t skip_space(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t next = at;
    if (!is_python_space(next_code_point(text, next))) break;
    at = next;
  }
  return at;
}

size_t skip_space_back(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t start = previous_character(text, end);
    size_t at = start;
    if (!is_python_space(next_code_point(text, at))) break;
    end = start;
  }
  return end;
}

std::vector<std::pair<size_t, size_t>> line_ranges(std::string_view text, bool keep_ends) {
  std::vector<std::pair<size_t, size_t>> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    size_t next = at;
    const uint32_t c = next_code_point(text, next);
    const bool ends =
        (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (ends) {
      if (c == '\r' && next < text.size() && text[next] == '\n') ++next;
      lines.emplace_back(begin, keep_ends ? next : at);
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) lines.emplace_back(begin, text.size());
  return lines;
}

std::string upper(std::string_view text) { return map_case(text, &u_strToUpper); }
std::string lower(std::string_view text) { return map_case(text, &u_strToLower); }

std::string swap_case(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const uint32_t c = next_code_point(text, at);
    const std::string_view one = text.substr(start, at - start);
    if (is_of(c, CharacterClass::Upper))
      out += lower(one);
    else if (is_of(c, CharacterClass::Lower))
      out += upper(one);
    else
      out += one;
  }
  return out;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  size_t first = 0;
  next_code_point(text, first);
  return title_character(text.substr(0, first)) + lower(text.substr(first));
}

std::string title(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const uint32_t c = next_code_point(text, at);
    out += title_character(text.substr(start, at - start));
    if (!is_cased(c)) continue;
    const size_t rest = at;
    while (at < text.size()) {
      size_t next = at;
      if (!is_cased(next_code_point(text, next))) break;
      at = next;
    }
    // With the first letter in front: the form of a last letter depends on what stands before it.
    const std::string whole = lower(text.substr(start, at - start));
    out += whole.substr(std::min(whole.size(), lower(text.substr(start, rest - start)).size()));
  }
  return out;
}

bool all_of(std::string_view text, CharacterClass wanted) {
  bool some = false;
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = next_code_point(text, at);
    if (wanted == CharacterClass::Upper || wanted == CharacterClass::Lower) {
      if (is_of(c, wanted == CharacterClass::Upper ? CharacterClass::Lower : CharacterClass::Upper))
        return false;
      some |= is_of(c, wanted);
    } else {
      if (!is_of(c, wanted)) return false;
      some = true;
    }
  }
  return some;
}

char repr_quote(std::string_view text) {
  return text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
}

std::string repr_body(std::string_view text, char quote) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const uint32_t c = next_code_point(text, at);
    if (c == static_cast<uint32_t>(quote) || c == '\\')
      (out += '\\') += static_cast<char>(c);
    else if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else if (c < 0x80 ? (c >= 0x20 && c < 0x7f) : is_printable(c))
      out += text.substr(start, at - start);
    else if (c < 0x100)
      out += fmt::format("\\x{:02x}", c);
    else if (c < 0x10000)
      out += fmt::format("\\u{:04x}", c);
    else
      out += fmt::format("\\U{:08x}", c);
  }
  return out;
}

std::string repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  // Shortest digits that read back the same, as Python prints them.
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  const char* digits_at = text.data() + e + 1 + (text[e + 1] == '+');
  std::from_chars(digits_at, text.data() + text.size(), exponent);
  std::string sign, digits;
  for (const char c : text.substr(0, e)) {
    if (c == '-')
      sign = "-";
    else if (c != '.')
      digits += c;
  }
  if (exponent < -4 || exponent >= 16) {
    std::string mantissa = digits.substr(0, 1);
    if (digits.size() > 1) mantissa += "." + digits.substr(1);
    return fmt::format("{}{}e{}{:02}", sign, mantissa, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

}  // namespace pleat::data::jinja
