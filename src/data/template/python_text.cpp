#include "data/template/python_text.h"

#include <fmt/format.h>
#include <unicode/ucasemap.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data::jinja {
namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

char ascii_cased(char c, bool to_upper) {
  if (to_upper) return static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
}

// Of no language; used by all threads at once.
const UCaseMap* case_map() {
  static const UCaseMap* const map = [] {
    UErrorCode status = U_ZERO_ERROR;
    const UCaseMap* const opened = ucasemap_open("", 0, &status);
    if (U_FAILURE(status)) base::fail("letter case: {}", u_errorName(status));
    return opened;
  }();
  return map;
}

// Full case mapping: one letter may become several.
std::string map_case(std::string_view text, bool to_upper) {
  std::string out(text.size(), '\0');
  if (is_ascii(text)) {
    std::transform(text.begin(), text.end(), out.begin(), [&](char c) { return ascii_cased(c, to_upper); });
    return out;
  }
  PLEAT_CHECK(text.size() < size_t{1} << 29);
  for (;;) {
    UErrorCode status = U_ZERO_ERROR;
    const auto change = to_upper ? &ucasemap_utf8ToUpper : &ucasemap_utf8ToLower;
    const int32_t length = change(case_map(), out.data(), static_cast<int32_t>(out.size()), text.data(),
                                  static_cast<int32_t>(text.size()), &status);
    const bool fits = static_cast<size_t>(length) <= out.size();
    if (U_FAILURE(status) && status != U_BUFFER_OVERFLOW_ERROR)
      base::fail("letter case: {}", u_errorName(status));
    out.resize(static_cast<size_t>(length));
    if (fits) return out;
  }
}

std::string title_character(std::string_view character) {
  size_t at = 0;
  const uint32_t c = next_code_point(character, at);
  const auto titled = static_cast<uint32_t>(u_totitle(static_cast<UChar32>(c)));
  if (titled == c) {  // such as the sharp s, which has a full mapping only
    std::string up = map_case(character, true);
    if (length_of(up) < 2) return up;
    size_t first = 0;
    next_code_point(up, first);
    return up.substr(0, first) + map_case(std::string_view(up).substr(first), false);
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

CharacterPlaces::CharacterPlaces(std::string_view text) : text_(text) {
  if (is_ascii(text)) {
    count_ = text.size();
    return;
  }
  for (size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80)
      if (count_++ % 64 == 0) some_.push_back(i);
}

size_t CharacterPlaces::operator[](size_t character) const {
  if (character >= count_) return text_.size();
  if (some_.empty()) return character;
  size_t at = some_[character / 64];
  for (size_t left = character % 64; left > 0; --left) next_code_point(text_, at);
  return at;
}

size_t find_text(std::string_view text, std::string_view wanted, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (wanted.empty()) return from;
  const void* const found = ::memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

BackwardSearch::BackwardSearch(std::string_view text, std::string_view wanted)
    : text_(text.rbegin(), text.rend()), wanted_(wanted.rbegin(), wanted.rend()) {}

size_t BackwardSearch::before(size_t end) const {
  const size_t found = find_text(text_, wanted_, text_.size() - end);
  return found == std::string_view::npos ? found : text_.size() - found - wanted_.size();
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

void for_each_line(std::string_view text, bool keep_ends, const std::function<void(size_t, size_t)>& visit) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    size_t next = at;
    const uint32_t c = next_code_point(text, next);
    const bool ends =
        (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (ends) {
      if (c == '\r' && next < text.size() && text[next] == '\n') ++next;
      visit(begin, keep_ends ? next : at);
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) visit(begin, text.size());
}

std::string upper(std::string_view text) { return map_case(text, true); }
std::string lower(std::string_view text) { return map_case(text, false); }

void append_cased(std::string& out, uint32_t c, bool to_upper) {
  if (c < 0x80) {
    out += ascii_cased(static_cast<char>(c), to_upper);
    return;
  }
  std::string character;
  append_code_point(character, c);
  char mapped[16];  // three characters of four bytes at most
  UErrorCode status = U_ZERO_ERROR;
  const auto change = to_upper ? &ucasemap_utf8ToUpper : &ucasemap_utf8ToLower;
  const int32_t length = change(case_map(), mapped, sizeof mapped, character.data(),
                                static_cast<int32_t>(character.size()), &status);
  if (U_FAILURE(status)) base::fail("letter case: {}", u_errorName(status));
  out.append(mapped, static_cast<size_t>(length));
}

std::string swap_case(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const uint32_t c = next_code_point(text, at);
    if (const bool up = is_of(c, CharacterClass::Upper); up || is_of(c, CharacterClass::Lower))
      append_cased(out, c, !up);
    else
      out += text.substr(start, at - start);
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
