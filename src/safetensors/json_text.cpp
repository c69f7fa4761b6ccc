#include "safetensors/json_text.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/foreign_text.h"

namespace pleat::safetensors {

namespace {

using Json = nlohmann::json;

// Bytes of the well-formed UTF-8 sequence at `at`, or 0: no overlong forms, no surrogates, nothing above
// U+10FFFF.
size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto follows = [&](size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned first = byte(at), second = byte(at + 1);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(at + 1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && second < 0xA0;
    const bool surrogate = first == 0xED && second > 0x9F;
    return follows(at + 1) && follows(at + 2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && second < 0x90;
    const bool beyond = first == 0xF4 && second > 0x8F;
    return follows(at + 1) && follows(at + 2) && follows(at + 3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

// Rules the grammar below does not see or would only reach after having read what they forbid. The parser
// takes a zero byte for the end and would not look at what follows, and it skips a byte order mark.
void check_text(std::string_view text, const std::string& where) {
  if (text.empty() || text.front() != '{') base::fail("{}: the JSON does not start with '{{'", where);
  int depth = 0;
  bool in_string = false, escaped = false;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '\0') base::fail("{}: byte {} of the JSON is zero", where, at);
    const size_t length = utf8_length(text, at);
    if (length == 0) base::fail("{}: byte {} of the JSON is not valid UTF-8", where, at);
    at += length;
    if (escaped) {
      escaped = false;
    } else if (in_string) {
      if (c == '\\') escaped = true;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) base::fail("{}: the JSON is nested deeper than {} levels", where, kMaxDepth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
}

class Sax : public nlohmann::json_sax<Json> {
 public:
  Sax(const std::string& where, JsonEvents& events) : where_(where), events_(events) {}

  bool null() override { return events_.other("null"), true; }
  bool boolean(bool) override { return events_.other("a boolean"), true; }
  // The parser sends everything with a minus sign here and nothing else.
  bool number_integer(number_integer_t) override { return events_.other("a negative number"), true; }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > kMaxNumber) return events_.other("a number above 2^53"), true;
    return events_.whole_number(static_cast<int64_t>(value)), true;
  }
  bool number_float(number_float_t, const string_t& digits) override {
    if (digits.find_first_not_of("0123456789") == std::string::npos)
      events_.other("a number above 2^53");
    else
      events_.other("a number with a sign, fraction or exponent");
    return true;
  }
  bool string(string_t& value) override { return events_.text(value), true; }
  bool binary(binary_t&) override { return events_.other("binary data"), true; }

  bool start_object(std::size_t) override {
    if (++num_open_ > keys_.size()) keys_.emplace_back();
    keys_[num_open_ - 1].clear();
    return events_.begin_object(), true;
  }
  bool end_object() override {
    --num_open_;
    return events_.end_object(), true;
  }
  bool start_array(std::size_t) override { return events_.begin_array(), true; }
  bool end_array() override { return events_.end_array(), true; }

  bool key(string_t& name) override {
    if (static_cast<int64_t>(name.size()) > kMaxNameBytes)
      base::fail("{}: a name has {} bytes; at most {} are allowed", where_, name.size(), kMaxNameBytes);
    for (const char c : name)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
        base::fail("{}: name {} holds a control character", where_, shown(name));
    // A sorted set: names chosen to collide in a hash table must not cost quadratic time.
    if (!keys_[num_open_ - 1].insert(name).second)
      base::fail("{}: key {} appears twice in one object", where_, shown(name));
    return events_.key(name), true;
  }

  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception& error) override {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) base::fail("{}: the JSON holds a number beyond any size", where_);
    base::fail("{}: not valid JSON at byte {}: {}", where_, at, base::json_fault(error.what()));
  }

 private:
  const std::string& where_;
  JsonEvents& events_;
  std::vector<std::set<std::string>> keys_;  // of the objects open now; kept to be used again
  size_t num_open_ = 0;
};

}  // namespace

void read_json(std::string_view text, const std::string& where, JsonEvents& events) {
  check_text(text, where);
  Sax sax(where, events);
  if (!Json::sax_parse(text.begin(), text.end(), &sax)) base::fail("{}: not valid JSON", where);
}

std::string shown(std::string_view text) {
  constexpr size_t kMaxShown = 120;
  std::string out = "'";
  for (const char c : text.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte > 0x7E)
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  return out + (text.size() > kMaxShown ? "...'" : "'");
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20)
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
          out += c;
    }
  }
  return out + '"';
}

}  // namespace pleat::safetensors
