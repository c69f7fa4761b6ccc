#include "data/tokenizer/pattern.h"

#include <fmt/format.h>

#include <cctype>
#include <optional>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/pattern_class.h"
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
constexpr size_t kMaxPatternDepth = 50;

bool is_pattern_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

class Translator {
 public:
  Translator(std::string_view pattern, PatternDialect dialect, std::string_view where)
      : in_(pattern), dialect_(dialect), where_(where) {}

  std::string run() {
    while (at_ < in_.size()) step();
    if (groups_.size() > 1) refuse("a group that is not closed");
    close_options();
    return std::move(out_);
  }

 private:
  struct Group {
    size_t begin = 0;                 // where it starts in the output
    bool ignores_case = false;        // in what follows
    size_t num_options_to_close = 0;  // groups opened for an Oniguruma (?i)
  };
  // A set of characters: the inside of a PCRE2 class, or everything else than that.
  struct Set {
    std::string inside;
    bool complement = false;
    std::string_view except = {};  // not in it although PCRE2 thinks so
  };

  [[noreturn]] void refuse(std::string_view what) const {
    base::fail("{}: pattern \"{}\": {} at byte {} is not supported", where_, shown(in_), what, at_);
  }
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool oniguruma() const { return dialect_ == PatternDialect::Oniguruma; }

  void step() {
    const char c = peek();
    if (c == '(') return open_group();
    if (c == ')') return close_group();
    if (c == '{') return repeat();
    if (c == '*' || c == '+' || c == '?' || c == '|') {
      out_ += c;
      ++at_;
      return;
    }
    atom_ = out_.size();
    if (c == '\\') {
      escape();
    } else if (c == '[') {
      const CharacterClass whole = character_class(0);
      if (groups_.back().ignores_case && !whole.is_plain())
        refuse("a class that nests, intersects or complements where case is ignored");
      out_ += whole.expression();
    } else {
      const size_t begin = at_;
      next_code_point(in_, at_);
      out_ += in_.substr(begin, at_ - begin);
    }
  }

  void open_group() {
    if (groups_.size() > kMaxPatternDepth) refuse("groups nested this deep");
    Group group{.begin = out_.size(), .ignores_case = groups_.back().ignores_case, .num_options_to_close = 0};
    std::string_view opening = "(";
    size_t length = 1;
    if (peek(1) == '?') {
      opening = {};
      for (const std::string_view known : {"(?:", "(?i:", "(?-i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"})
        if (in_.substr(at_).starts_with(known)) opening = known;
      length = opening.size();
      if (opening == "(?i:") group.ignores_case = true;
      if (opening == "(?-i:") group.ignores_case = false;
      if (opening.empty() && option()) return;
      if (opening.empty()) length = named_group(opening);
    } else if (peek(1) == '*') {
      refuse("verb (*");
    }
    out_ += opening;
    at_ += length;
    groups_.push_back(group);
  }

  // (?i) and (?-i). Oniguruma takes all that follows, alternatives included, into a group of its own.
  bool option() {
    for (const std::string_view known : {"(?i)", "(?-i)"}) {
      if (!in_.substr(at_).starts_with(known)) continue;
      Group& group = groups_.back();
      group.ignores_case = known == "(?i)";
      if (oniguruma()) {
        if (group.num_options_to_close >= kMaxPatternDepth) refuse("options nested this deep");
        out_.append(known.substr(0, known.size() - 1)).append(":");
        ++group.num_options_to_close;
      } else {
        out_ += known;
      }
      at_ += known.size();
      return true;
    }
    return false;
  }

  // (?<name>, and Rust's (?P<name>: nothing can refer to the name, so that it is a group like any other.
  size_t named_group(std::string_view& opening) const {
    std::string_view rest = in_.substr(at_);
    const std::string_view start = rest.starts_with("(?P<") && !oniguruma() ? "(?P<" : "(?<";
    const size_t close = rest.find('>');
    bool good = rest.starts_with(start) && close != std::string_view::npos && close > start.size();
    for (size_t i = start.size(); good && i < close; ++i)
      good = rest[i] == '_' || std::isalnum(static_cast<unsigned char>(rest[i])) != 0;
    if (!good || is_pattern_digit(rest[start.size()])) refuse("group " + shown(rest.substr(0, 4)));
    opening = "(?:";
    return close + 1;
  }

  void close_options() { out_.append(groups_.back().num_options_to_close, ')'); }

  void close_group() {
    if (groups_.size() == 1) refuse("a ) without its (");
    close_options();
    atom_ = groups_.back().begin;
    groups_.pop_back();
    out_ += ')';
    ++at_;
  }

  // {n}, {n,} and {n,m}, and Oniguruma's {,m}; everything else in braces is read differently by different
  // libraries. Behind one of them Oniguruma's + repeats it again, and ? behind {n} makes it optional.
  void repeat() {
    const size_t close = in_.find('}', at_);
    if (close == std::string_view::npos) refuse("a brace that is not closed");
    std::string inside(in_.substr(at_ + 1, close - at_ - 1));
    if (oniguruma() && inside.size() > 1 && inside[0] == ',') inside.insert(0, "0");
    bool digits_first = !inside.empty() && is_pattern_digit(inside[0]);
    for (const char c : inside)
      if (c != ',' && !is_pattern_digit(c)) digits_first = false;
    if (!digits_first || atom_ == std::string::npos) refuse("repeat {" + shown(inside, 20) + "}");
    at_ = close + 1;
    const bool again =
        oniguruma() &&
        (peek() == '+' || (peek() == '?' && !inside.ends_with(',') && inside.find(',') == std::string::npos));
    if (again) out_.insert(atom_, "(?:");
    out_ += "{" + inside + "}";
    if (again) out_ += ')';
  }

  // From the [ to behind the ].
  CharacterClass character_class(size_t depth) {
    if (depth > kMaxPatternDepth) refuse("classes nested this deep");
    ++at_;
    const bool negated = peek() == '^';
    if (negated) ++at_;
    CharacterClass result(negated);
    if (peek() == ']') refuse("] as first member of a class");
    for (;;) {
      if (at_ >= in_.size()) refuse("a class that is not closed");
      const char c = peek();
      if (c == ']') break;
      if (c == '[') {
        if (peek(1) == ':') refuse("a named class [:");
        result.add_class(character_class(depth + 1));
      } else if (c == '&' && peek(1) == '&') {
        if (result.last_is_empty()) refuse("&& with nothing before it");
        at_ += 2;
        result.intersect();
      } else if (!oniguruma() && (in_.substr(at_).starts_with("--") || in_.substr(at_).starts_with("~~"))) {
        refuse("-- or ~~ inside a class");
      } else {
        member(result);
      }
    }
    if (result.last_is_empty()) refuse("&& with nothing behind it");
    ++at_;
    return result;
  }

  // A character, a range of them, or a set.
  void member(CharacterClass& result) {
    Set set;
    const std::optional<uint32_t> first = class_character(set);
    if (!first) {
      result.add_class(as_class(set));
      if (peek() == '-' && peek(1) != ']') refuse("- behind a set inside a class");
      return;
    }
    if (peek() != '-' || peek(1) == ']' || peek(1) == '\0' || peek(1) == '[' ||
        in_.substr(at_ + 1).starts_with("&&")) {
      result.add_set(fmt::format("\\x{{{:x}}}", *first));
      return;
    }
    ++at_;
    const std::optional<uint32_t> last = class_character(set);
    if (!last) refuse("a range that ends in a set");
    if (*last < *first) refuse("a range that runs backwards");
    result.add_set(fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", *first, *last));
  }

  static CharacterClass as_class(const Set& set) {
    CharacterClass result(set.complement);
    result.add_set(set.inside);
    if (!set.except.empty()) {
      result.intersect();
      result.add_complement(std::string(set.except));
    }
    return result;
  }

  // One member of a class: its code point, or nothing when it is a set.
  std::optional<uint32_t> class_character(Set& set) {
    if (peek() != '\\') return next_code_point(in_, at_);
    if (set_escape(set, true)) return std::nullopt;
    if (peek(1) == 'b' && oniguruma()) {
      at_ += 2;
      return 0x08;
    }
    return escaped_character();
  }

  // Oniguruma takes six superscripts and fractions for word characters, but not inside a class.
  std::string word_set(bool in_class) const {
    std::string set;
    for (const char* category : {"L", "Nl", "M", "Nd", "Pc"})
      set += std::string("\\p{") + category + "}" + unicode_additions(category);
    // Letters in circles and squares are alphabetic by a property of their own.
    set += R"(\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
    if (!oniguruma()) set += R"(\x{200c}\x{200d})";
    if (oniguruma() && !in_class) set += R"(\xb2\xb3\xb9\xbc-\xbe)";
    return set;
  }

  void escape() {
    const char c = peek(1);
    Set set;
    if (set_escape(set, false)) {
      out_ += as_class(set).expression();
    } else if (c == 'b' || c == 'B') {
      // A place with a word character on exactly one side (both or none for B).
      const std::string word = "[" + word_set(false) + "]";
      const auto place = [&](const char* before, const char* behind) {
        return "(?<" + std::string(before) + word + ")(?" + behind + word + ")";
      };
      out_ += c == 'b' ? "(?:" + place("=", "!") + "|" + place("!", "=") + ")"
                       : "(?:" + place("=", "=") + "|" + place("!", "!") + ")";
      at_ += 2;
    } else if (c == 'A' || c == 'z') {
      out_.append("\\").append(1, c);
      at_ += 2;
    } else {
      out_ += fmt::format("\\x{{{:x}}}", escaped_character());
    }
  }

  // An escape that stands for a set of characters; false, with nothing read, when it stands for something
  // else.
  bool set_escape(Set& set, bool in_class) {
    const char c = peek(1);
    switch (c) {
      case 's':
      case 'S':
        set.inside = c == 's' ? kSpace : kNotSpace;
        at_ += 2;
        return true;
      case 'w':
      case 'W':
        set.inside = word_set(in_class);
        break;
      case 'd':
      case 'D':
        set.inside = "\\p{Nd}" + unicode_additions("Nd");
        break;
      case 'p':
      case 'P':
        at_ += 2;
        property(set, c == 'P');
        return true;
      default:
        return false;
    }
    at_ += 2;
    set.complement = std::isupper(static_cast<unsigned char>(c)) != 0;
    return true;
  }

  // An escape that stands for one character.
  uint32_t escaped_character() {
    const char c = peek(1);
    constexpr std::string_view kNames = "rntfv", kMeant = "\r\n\t\f\v";
    if (const size_t i = kNames.find(c); i != std::string_view::npos) {
      at_ += 2;
      return static_cast<unsigned char>(kMeant[i]);
    }
    if (c == 'x' || c == 'u') return code_point(c);
    if (c == '\0' || std::isalnum(static_cast<unsigned char>(c)) != 0 ||
        static_cast<unsigned char>(c) >= 0x80)
      refuse("escape " + shown(in_.substr(at_, 2)));
    at_ += 2;
    return static_cast<unsigned char>(c);
  }

  uint32_t code_point(char kind) {
    at_ += 2;
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
    const unsigned long value = std::stoul(std::string(digits), nullptr, 16);
    // Oniguruma's \xHH is one byte.
    const bool part_of_character = oniguruma() && kind == 'x' && in_[at_ - 1] != '}' && value >= 0x80;
    if (part_of_character || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
      refuse("code point " + shown(digits, 12));
    return static_cast<uint32_t>(value);
  }

  void property(Set& set, bool negated) {
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
    if (is_known_category(name))
      set.inside = "\\p{" + std::string(name) + "}";
    else if (is_known_script(name))
      set.inside = "\\p{sc:" + std::string(name) + "}";  // a bare script name would mean its extensions too
    else
      refuse("property \\p{" + shown(name, 20) + "}");
    set.inside += unicode_additions(name);
    if (name == "Mn") set.except = "\\x{1171e}";
    set.complement = negated;
  }

  std::string_view in_;
  PatternDialect dialect_;
  std::string_view where_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = std::string::npos;  // where the last thing that can be repeated starts in the output
  std::vector<Group> groups_ = {Group{}};
};

}  // namespace

std::string to_pcre2(std::string_view pattern, PatternDialect dialect, std::string_view where) {
  if (!is_valid_utf8(pattern)) base::fail("{}: pattern \"{}\" is no valid UTF-8", where, shown(pattern));
  return Translator(pattern, dialect, where).run();
}

}  // namespace pleat::data
