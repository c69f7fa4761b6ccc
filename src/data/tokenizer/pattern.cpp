#include "data/tokenizer/pattern.h"

#include <cctype>

#include "base/error.h"
#include "data/tokenizer/unicode_additions.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

// PCRE2's \s has U+180E, which lost the property in Unicode 6.3.
constexpr std::string_view kSpace =
    R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x00-\x08\x0e-\x1f\x21-\x84\x86-\x9f\xa1-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e})"
    R"(\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

class Translator {
 public:
  Translator(std::string_view pattern, PatternDialect dialect, std::string_view where)
      : in_(pattern), dialect_(dialect), where_(where) {}

  std::string run() {
    while (at_ < in_.size()) step();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    base::fail("{}: pattern \"{}\": {} at byte {} is not supported", where_, shown(in_), what, at_);
  }
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }

  void step() {
    const char c = peek();
    if (c == '\\') {
      escape(false);
    } else if (c == '[') {
      character_class();
    } else if (c == '(') {
      group();
    } else if (c == '{') {
      repeat();
    } else {
      out_ += c;
      ++at_;
    }
  }

  void group() {
    std::string_view opening = "(";
    if (peek(1) == '?') {
      opening = {};
      for (const std::string_view known : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"})
        if (in_.substr(at_).starts_with(known)) opening = known;
      if (opening.empty()) refuse("group " + shown(in_.substr(at_, 4)));
    } else if (peek(1) == '*') {
      refuse("verb (*");
    }
    out_ += opening;
    at_ += opening.size();
  }

  // {n}, {n,} and {n,m}; everything else in braces is read differently by different libraries.
  void repeat() {
    const size_t close = in_.find('}', at_);
    if (close == std::string_view::npos) refuse("a brace that is not closed");
    const std::string_view inside = in_.substr(at_ + 1, close - at_ - 1);
    bool digits_first = !inside.empty() && std::isdigit(static_cast<unsigned char>(inside[0])) != 0;
    for (const char c : inside)
      if (c != ',' && std::isdigit(static_cast<unsigned char>(c)) == 0) digits_first = false;
    if (!digits_first) refuse("repeat {" + shown(inside, 20) + "}");
    out_ += in_.substr(at_, close + 1 - at_);
    at_ = close + 1;
    if (peek() == '+' && dialect_ == PatternDialect::Oniguruma) refuse("+ after a counted repeat");
  }

  void character_class() {
    out_ += '[';
    ++at_;
    if (peek() == '^') {
      out_ += '^';
      ++at_;
    }
    if (peek() == ']') refuse("] as first member of a class");
    for (;;) {
      if (at_ >= in_.size()) refuse("a class that is not closed");
      const char c = peek();
      if (c == ']') break;
      if (c == '[') refuse("a class inside a class");
      if (c == '&' && peek(1) == '&') refuse("&& inside a class");
      if (c == '\\') {
        escape(true);
      } else {
        out_ += c;
        ++at_;
      }
    }
    out_ += ']';
    ++at_;
  }

  void put_set(std::string_view inside, bool in_class) {
    if (in_class)
      out_ += inside;
    else
      out_.append("[").append(inside).append("]");
  }
  void put_negated(std::string_view inside, bool in_class) {
    if (in_class) refuse("a negated set inside a class");
    out_.append("[^").append(inside).append("]");
  }

  std::string word_set() const {
    std::string set;
    for (const char* category : {"L", "Nl", "M", "Nd", "Pc"})
      set += std::string("\\p{") + category + "}" + unicode_additions(category);
    // Letters in circles and squares are alphabetic by a property of their own.
    set += R"(\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
    if (dialect_ == PatternDialect::Oniguruma) set += R"(\xb2\xb3\xb9\xbc-\xbe)";
    return set;
  }

  void escape(bool in_class) {
    const char c = peek(1);
    const size_t start = at_;
    at_ += 2;
    switch (c) {
      case 's':
        return put_set(kSpace, in_class);
      case 'S':
        return put_set(kNotSpace, in_class);
      case 'w':
        return put_set(word_set(), in_class);
      case 'W':
        return put_negated(word_set(), in_class);
      case 'd':
        return put_set("\\p{Nd}" + unicode_additions("Nd"), in_class);
      case 'D':
        return put_negated("\\p{Nd}" + unicode_additions("Nd"), in_class);
      case 'p':
      case 'P':
        return property(c == 'P', in_class);
      case 'r':
      case 'n':
      case 't':
      case 'f':
        out_ += '\\';
        out_ += c;
        return;
      case 'v':
        out_ += "\\x0b";
        return;
      case 'x':
      case 'u':
        return code_point(c);
      default:
        break;
    }
    if (c == '\0' || std::isalnum(static_cast<unsigned char>(c)) != 0 ||
        static_cast<unsigned char>(c) >= 0x80) {
      at_ = start;
      refuse("escape " + shown(in_.substr(start, 2)));
    }
    out_ += '\\';
    out_ += c;
  }

  void code_point(char kind) {
    std::string_view digits;
    if (peek() == '{') {
      const size_t close = in_.find('}', at_);
      if (close == std::string_view::npos) refuse("a brace that is not closed");
      digits = in_.substr(at_ + 1, close - at_ - 1);
      at_ = close + 1;
    } else {
      digits = in_.substr(at_, kind == 'x' ? 2 : 4);
      if (digits.size() != (kind == 'x' ? 2u : 4u)) refuse("a code point that ends early");
      at_ += digits.size();
    }
    if (digits.empty() || digits.size() > 6) refuse("code point " + shown(digits, 12));
    for (const char c : digits)
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) refuse("code point " + shown(digits, 12));
    out_.append("\\x{").append(digits).append("}");
  }

  void property(bool negated, bool in_class) {
    std::string_view name;
    if (peek() == '{') {
      const size_t close = in_.find('}', at_);
      if (close == std::string_view::npos) refuse("a property that is not closed");
      name = in_.substr(at_ + 1, close - at_ - 1);
      at_ = close + 1;
    } else {
      name = in_.substr(at_, 1);
      if (!name.empty()) ++at_;
    }
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    std::string set;
    if (is_known_category(name))
      set = "\\p{" + std::string(name) + "}";
    else if (is_known_script(name))
      set = "\\p{sc:" + std::string(name) + "}";  // a bare script name would mean its extensions too
    else
      refuse("property \\p{" + shown(name, 20) + "}");
    set += unicode_additions(name);
    if (negated)
      put_negated(set, in_class);
    else
      put_set(set, in_class);
  }

  std::string_view in_;
  PatternDialect dialect_;
  std::string_view where_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string to_pcre2(std::string_view pattern, PatternDialect dialect, std::string_view where) {
  if (!is_valid_utf8(pattern)) base::fail("{}: pattern \"{}\" is no valid UTF-8", where, shown(pattern));
  return Translator(pattern, dialect, where).run();
}

}  // namespace pleat::data
