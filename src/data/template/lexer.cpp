#include "data/template/lexer.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "data/template/python_text.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Every line end as \n; one at the very end is dropped.
std::string normalized_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name) : source_(source), name_(name) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    add(TokenKind::End);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const { base::fail("{}:{}: {}", name_, line_, what); }

  bool starts(std::string_view what, size_t at) const { return source_.substr(at).starts_with(what); }

  void move_to(size_t at) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at), '\n'));
    starts_line_ = at > at_ && source_[at - 1] == '\n';
    at_ = at;
  }

  Token& add(TokenKind kind, std::string text = {}) {
    tokens_.push_back({.kind = kind, .line = line_, .text = std::move(text)});
    return tokens_.back();
  }

  // Text up to a tag with this sign; `is_block` for tags whose line may be stripped.
  void add_text(size_t end, char sign, bool is_block) {
    std::string_view text = source_.substr(at_, end - at_);
    if (sign == '-') {
      text = text.substr(0, skip_space_back(text, text.size()));
    } else if (sign != '+' && is_block) {
      const size_t last = text.rfind('\n');
      const size_t line_start = last == std::string_view::npos ? 0 : last + 1;
      if ((line_start > 0 || starts_line_) && line_start < text.size() &&
          skip_space(text, line_start) == text.size())
        text = text.substr(0, line_start);
    }
    if (!text.empty()) add(TokenKind::Text, std::string(text));
  }

  char sign_at(size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
  }

  // Behind a block's or comment's end at `at`, or 0 when none is there.
  size_t end_of_block(size_t at, std::string_view end) const {
    if (at < source_.size() && source_[at] == '+' && starts(end, at + 1)) return at + 1 + end.size();
    if (at < source_.size() && source_[at] == '-' && starts(end, at + 1))
      return skip_space(source_, at + 1 + end.size());
    if (!starts(end, at)) return 0;
    at += end.size();
    return at < source_.size() && source_[at] == '\n' ? at + 1 : at;
  }

  void root() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= source_.size()) {
        add(TokenKind::Text, std::string(source_.substr(at_)));
        return move_to(source_.size());
      }
      if (source_[tag + 1] == '{' || source_[tag + 1] == '%' || source_[tag + 1] == '#') break;
    }
    const char kind = source_[tag + 1];
    const char sign = sign_at(tag + 2);
    add_text(tag, sign, kind != '{');
    const size_t inside = tag + 2 + (sign != '\0');
    if (kind == '#') {
      move_to(tag);
      return comment(inside);
    }
    if (kind == '%')
      if (const size_t body = raw_body(inside)) {
        move_to(tag);
        return raw(body);
      }
    move_to(tag);
    add(kind == '{' ? TokenKind::PrintBegin : TokenKind::BlockBegin);
    move_to(inside);
    tags(kind == '{');
  }

  void comment(size_t at) {
    for (; at < source_.size(); ++at)
      if (const size_t end = end_of_block(at, "#}")) return move_to(end);
    fail("a comment is not closed by #}");
  }

  // Where the text of a raw block begins, when "raw" and the end of its tag follow; else 0.
  size_t raw_body(size_t at) const {
    at = skip_space(source_, at);
    if (!starts("raw", at)) return 0;
    at = skip_space(source_, at + 3);
    if (starts("%}", at)) return at + 2;
    return starts("-%}", at) ? skip_space(source_, at + 3) : 0;
  }

  void raw(size_t body) {
    move_to(body);
    for (size_t at = body; (at = source_.find("{%", at)) != std::string_view::npos; ++at) {
      const char sign = sign_at(at + 2);
      size_t word = skip_space(source_, at + 2 + (sign != '\0'));
      if (!starts("endraw", word)) continue;
      word = skip_space(source_, word + 6);
      if (const size_t end = end_of_block(word, "%}")) {
        add_text(at, sign, true);
        return move_to(end);
      }
    }
    fail("a raw block is not closed by {% endraw %}");
  }

  void tags(bool print) {
    std::string open;
    for (;;) {
      if (open.empty()) {
        size_t end = 0;
        if (!print)
          end = end_of_block(at_, "%}");
        else if (starts("-}}", at_))
          end = skip_space(source_, at_ + 3);
        else if (starts("}}", at_))
          end = at_ + 2;
        if (end != 0) {
          add(print ? TokenKind::PrintEnd : TokenKind::BlockEnd);
          return move_to(end);
        }
      }
      if (at_ >= source_.size()) fail(print ? "a {{ is not closed by }}" : "a {% is not closed by %}");
      if (const size_t after = skip_space(source_, at_); after > at_) {
        move_to(after);
        continue;
      }
      const char c = source_[at_];
      if (is_digit(c))
        number();
      else if (is_name_start(c))
        name();
      else if (c == '\'' || c == '"')
        string(c);
      else
        operation(open);
    }
  }

  void name() {
    size_t end = at_;
    while (end < source_.size() && is_name_part(source_[end])) ++end;
    if (end < source_.size() && static_cast<unsigned char>(source_[end]) >= 0x80)
      fail("a name with letters outside ASCII is not supported");
    add(TokenKind::Name, std::string(source_.substr(at_, end - at_)));
    move_to(end);
  }

  // Digits, perhaps with single _ between them.
  size_t digits(size_t at) const {
    while (at < source_.size() && (is_digit(source_[at]) || (source_[at] == '_' && at + 1 < source_.size() &&
                                                             is_digit(source_[at + 1]))))
      ++at;
    return at;
  }

  void number() {
    if (source_[at_] == '0' && at_ + 1 < source_.size() &&
        std::string_view("xXbBoO").find(source_[at_ + 1]) != std::string_view::npos)
      fail("a number that is not decimal is not supported");
    size_t end = digits(at_);
    bool real = false;
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    if (!after_dot) {
      if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
        real = true;
        end = digits(end + 1);
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        size_t exponent = end + 1;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
        if (exponent < source_.size() && is_digit(source_[exponent])) {
          real = true;
          end = digits(exponent);
        }
      }
    }
    std::string text(source_.substr(at_, end - at_));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    const char* const last = text.data() + text.size();
    Token& token = add(real ? TokenKind::Float : TokenKind::Integer, text);
    const auto result = real ? std::from_chars(text.data(), last, token.real)
                             : std::from_chars(text.data(), last, token.integer);
    if (result.ec != std::errc() || result.ptr != last)
      fail(fmt::format("the number {} is out of range", shown(text, 40)));
    if (!real && text.size() > 1 && text[0] == '0' && token.integer != 0)
      fail(fmt::format("the number {} starts with 0", shown(text, 40)));
    move_to(end);
  }

  // `count` hexadecimal digits of an escape, from `at` on.
  uint32_t hex(size_t& at, size_t end, int count) const {
    uint32_t value = 0;
    for (int i = 0; i < count; ++i, ++at) {
      const int digit = at < end ? hex_value(source_[at]) : -1;
      if (digit < 0) fail("a string has an escape with too few hexadecimal digits");
      value = value << 4 | static_cast<uint32_t>(digit);
    }
    return value;
  }

  void code_point_escape(std::string& out, size_t& at, size_t end, int count) const {
    uint32_t c = hex(at, end, count);
    if (c >= 0xd800 && c < 0xdc00 && at + 1 < end && source_[at] == '\\' && source_[at + 1] == 'u') {
      size_t second = at + 2;
      const uint32_t low = hex(second, end, 4);
      if (low >= 0xdc00 && low < 0xe000) {
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
        at = second;
      }
    }
    if ((c >= 0xd800 && c < 0xe000) || c > 0x10ffff) fail("a string has an escape that is no character");
    append_code_point(out, c);
  }

  void escape(std::string& out, size_t& at, size_t end) const {
    const char c = source_[at++];
    static constexpr std::string_view kFrom = "nrtabfv\\'\"";
    static constexpr std::string_view kTo = "\n\r\t\a\b\f\v\\'\"";
    if (const size_t known = kFrom.find(c); known != std::string_view::npos) {
      out += kTo[known];
    } else if (c == '\n') {
    } else if (c >= '0' && c <= '7') {
      uint32_t value = static_cast<uint32_t>(c - '0');
      for (int i = 0; i < 2 && at < end && source_[at] >= '0' && source_[at] <= '7'; ++i, ++at)
        value = value * 8 + static_cast<uint32_t>(source_[at] - '0');
      append_code_point(out, value);
    } else if (c == 'x') {
      append_code_point(out, hex(at, end, 2));
    } else if (c == 'u' || c == 'U') {
      code_point_escape(out, at, end, c == 'u' ? 4 : 8);
    } else if (c == 'N') {
      fail("a string names a character with \\N, which is not supported");
    } else {
      out += '\\';
      --at;  // the character itself, which may have several bytes
      const size_t start = at;
      next_code_point(source_, at);
      out += source_.substr(start, at - start);
    }
  }

  void string(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("a string is not closed");
    std::string value;
    for (size_t at = at_ + 1; at < end;) {
      if (source_[at] != '\\') {
        value += source_[at++];
        continue;
      }
      ++at;
      escape(value, at, end);
    }
    add(TokenKind::String, std::move(value));
    move_to(end + 1);
  }

  void operation(std::string& open) {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    std::string_view found;
    for (const std::string_view two : kTwo)
      if (starts(two, at_)) found = two;
    if (found.empty() &&
        std::string_view("+-/*%~[](){}><=.:|,;").find(source_[at_]) != std::string_view::npos)
      found = source_.substr(at_, 1);
    if (found.empty()) fail(fmt::format("unexpected character '{}'", shown(source_.substr(at_, 1))));
    const char c = found[0];
    if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fail(fmt::format("unexpected '{}'", c));
      if (open.back() != c) fail(fmt::format("unexpected '{}', expected '{}'", c, open.back()));
      open.pop_back();
    }
    add(TokenKind::Operator, std::string(found));
    move_to(at_ + found.size());
  }

  std::string_view source_;
  const std::string& name_;
  size_t at_ = 0;
  int line_ = 1;
  bool starts_line_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> lex(std::string_view source, const std::string& name) {
  std::string replaced;
  const std::string normalized = normalized_lines(as_valid_utf8(source, replaced));
  return Lexer(normalized, name).run();
}

}  // namespace pleat::data::jinja
