// Filters that make text, and conversions.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "data/template/evaluator.h"
#include "data/template/python_text.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data::jinja {
namespace {

// The method of the same name, on str(value).
template <const auto& kName>
Value as_method(Evaluator& e, const Value& value, CallArguments& arguments) {
  return call_text_method(e, std::make_shared<const TracedText>(e.str(value)), kName, arguments);
}
constexpr char kUpper[] = "upper", kLower[] = "lower", kCapitalize[] = "capitalize", kStrip[] = "strip";

// Jinja's own: words begin behind white space, - ( { [ and <.
Value title_filter(Evaluator& e, const Value& value, CallArguments&) {
  const TracedText text = e.str(value);
  e.charge_letters(2 * text.size());
  TracedText out;
  bool at_start = true;
  e.append_converted(out, text, [&](std::string_view piece) {
    std::string titled;
    for (size_t at = 0; at < piece.size();) {
      const uint32_t c = next_code_point(piece, at);
      append_cased(titled, c, at_start);
      at_start = is_python_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    }
    return titled;
  });
  return e.make(std::move(out));
}

Value replace_filter(Evaluator& e, const Value& value, CallArguments& arguments) {
  const Value* from = arguments.get(0, "old");
  const Value* to = arguments.get(1, "new");
  const Value* most = arguments.get(2, "count");
  if (from == nullptr || to == nullptr) e.fail("the filter replace needs what to replace, and by what");
  return e.make(replaced(e, e.str(value), e.str(*from), e.str(*to),
                         most == nullptr || most->is_none() ? -1 : e.integer(*most, "replace")));
}

Value string_filter(Evaluator& e, const Value& value, CallArguments&) { return e.make(e.str(value)); }

Value indent(Evaluator& e, const Value& value, CallArguments& arguments) {
  const Value* width = arguments.get(0, "width");
  const Value* first = arguments.get(1, "first");
  const Value* blank = arguments.get(2, "blank");
  TracedText indention;
  if (width != nullptr && width->text() != nullptr) {
    indention = *width->text();
  } else {
    const int64_t n = width == nullptr ? 4 : e.integer(*width, "indent");
    if (n > 10'000) e.fail("the filter indent by more than 10000 is not supported");
    indention = TracedText(std::string(static_cast<size_t>(std::max<int64_t>(n, 0)), ' '));
  }
  TracedText text = e.text(value, "indent");
  text.append("\n");
  TracedText out;
  e.charge_scan(text.size());
  if (first != nullptr && truth(*first)) out.append(indention);
  size_t at = 0;
  for_each_line(text.bytes(), false, [&](size_t begin, size_t end) {
    e.charge(1);
    e.charge_copy(indention.memory());
    if (at++ > 0) {
      out.append("\n");
      if (end > begin || (blank != nullptr && truth(*blank))) out.append(indention);
    }
    out.append(text.slice(begin, end));
    e.check_room(out);
  });
  return e.make(std::move(out));
}

Value escape(Evaluator& e, const Value& value, CallArguments&) {
  TracedText escaped;
  e.append_converted(escaped, e.str(value), [](std::string_view piece) {
    std::string out;
    for (const char c : piece) {
      if (c == '&')
        out += "&amp;";
      else if (c == '<')
        out += "&lt;";
      else if (c == '>')
        out += "&gt;";
      else if (c == '"')
        out += "&#34;";
      else if (c == '\'')
        out += "&#39;";
      else
        out += c;
    }
    return out;
  });
  return e.make(std::move(escaped));
}

// float(text): white space around, _ between digits, inf and nan.
bool parse_real(std::string_view text, double& out) {
  const size_t begin = skip_space(text, 0);
  text = text.substr(begin, std::max(begin, skip_space_back(text, text.size())) - begin);
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      plain += text[i];
      continue;
    }
    const auto digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) return false;
  }
  const bool negative = plain.starts_with('-');
  if (negative || plain.starts_with('+')) plain.erase(0, 1);
  if (plain.empty() || plain[0] == '-' || plain[0] == '+') return false;
  const auto result = std::from_chars(plain.data(), plain.data() + plain.size(), out);
  if (result.ptr != plain.data() + plain.size() || result.ec == std::errc::invalid_argument) return false;
  if (plain.find('(') != std::string::npos) return false;
  if (result.ec == std::errc::result_out_of_range) out = plain.find("e-") != std::string::npos ? 0 : HUGE_VAL;
  if (negative) out = -out;
  return true;
}

bool parse_integer(std::string_view text, int64_t base, int64_t& out, Evaluator& e) {
  const size_t begin = skip_space(text, 0);
  text = text.substr(begin, std::max(begin, skip_space_back(text, text.size())) - begin);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_' && (i == 0 || i + 1 == text.size() || text[i + 1] == '_')) return false;
    if (text[i] != '_') plain += text[i];
  }
  if (plain.empty() || plain[0] == '-') return false;
  const auto result = std::from_chars(plain.data(), plain.data() + plain.size(), out, static_cast<int>(base));
  if (result.ptr != plain.data() + plain.size()) return false;
  if (result.ec == std::errc::result_out_of_range) e.fail("an integer is too large");
  if (negative) out = -out;
  return result.ec == std::errc();
}

Value to_integer(Evaluator& e, double value, const Value& otherwise) {
  if (std::isnan(value) || std::isinf(value)) return otherwise;
  if (value >= 9223372036854775808.0 || value < -9223372036854775808.0) e.fail("an integer is too large");
  return static_cast<int64_t>(value);
}

Value int_filter(Evaluator& e, const Value& value, CallArguments& arguments) {
  const Value* given = arguments.get(0, "default");
  const Value* base = arguments.get(1, "base");
  Value otherwise = given == nullptr ? Value(int64_t{0}) : *given;
  const int64_t radix = base == nullptr ? 10 : e.integer(*base, "int");
  if (radix < 2 || radix > 36) e.fail("the filter int needs a base from 2 to 36");
  int64_t out = 0;
  if (const Undefined* undefined = value.undefined()) e.fail(undefined->why);
  if (value.as_integer(out)) return out;
  double real = 0;
  if (const double* d = value.real()) return to_integer(e, *d, otherwise);
  if (value.text() == nullptr) return otherwise;
  e.charge_letters(value.text()->size());
  if (parse_integer(value.text()->bytes(), radix, out, e)) return out;
  return parse_real(value.text()->bytes(), real) ? to_integer(e, real, otherwise) : otherwise;
}

Value float_filter(Evaluator& e, const Value& value, CallArguments& arguments) {
  const Value* given = arguments.get(0, "default");
  if (const Undefined* undefined = value.undefined()) e.fail(undefined->why);
  double out = 0;
  if (value.as_real(out)) return out;
  if (value.text() != nullptr) e.charge_letters(value.text()->size());
  if (value.text() != nullptr && parse_real(value.text()->bytes(), out)) return out;
  return given == nullptr ? Value(0.0) : *given;
}

Value abs_filter(Evaluator& e, const Value& value, CallArguments&) {
  if (const double* d = value.real()) return std::fabs(*d);
  const int64_t i = e.integer(value, "abs");
  if (i == INT64_MIN) e.fail("an integer is too large");
  return i < 0 ? -i : i;
}

// Half to even on the decimal digits the number really has, as Python rounds.
double rounded(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 300) return value;
  if (digits < -300) return 0.0 * value;
  if (digits >= 0) {
    const std::string text = fmt::format("{:.{}f}", value, digits);
    double out = value;
    std::from_chars(text.data(), text.data() + text.size(), out);
    return out;
  }
  const double scale = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / scale) * scale;
}

Value round_filter(Evaluator& e, const Value& value, CallArguments& arguments) {
  const Value* precision = arguments.get(0, "precision");
  const Value* method = arguments.get(1, "method");
  const int64_t digits = precision == nullptr ? 0 : e.integer(*precision, "round");
  e.charge(64);
  const std::string how = method == nullptr ? "common" : e.text(*method, "round").bytes();
  double x = 0;
  if (!value.as_real(x)) e.fail(fmt::format("the filter round needs a number, not a {}", type_name(value)));
  if (how == "common") {
    int64_t i = 0;
    if (!value.as_integer(i)) return rounded(x, digits);
    if (digits >= 0) return i;
    if (digits < -18) return int64_t{0};
    return static_cast<int64_t>(rounded(x, digits));
  }
  if (how != "ceil" && how != "floor") e.fail("the filter round needs common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(digits));
  return (how == "ceil" ? std::ceil(x * scale) : std::floor(x * scale)) / scale;
}

Value default_filter(Evaluator& e, const Value& value, CallArguments& arguments) {
  const Value* otherwise = arguments.get(0, "default_value");
  const Value* boolean = arguments.get(1, "boolean");
  const bool replace = value.is_undefined() || (boolean != nullptr && truth(*boolean) && !truth(value));
  if (!replace) return value;
  return otherwise == nullptr ? e.make(std::string()) : *otherwise;
}

Value format_filter(Evaluator& e, const Value& value, CallArguments& arguments) {
  std::vector<Value> values;
  for (size_t i = 0; i < arguments.positional().size(); ++i) values.push_back(*arguments.get(i, {}));
  return format_percent(e, e.str(value), e.make_list(std::move(values), ListKind::Tuple));
}

Value truncate(Evaluator& e, const Value& value, CallArguments& arguments) {
  const Value* length = arguments.get(0, "length");
  const Value* kill = arguments.get(1, "killwords");
  const Value* end = arguments.get(2, "end");
  const Value* leeway = arguments.get(3, "leeway");
  const TracedText& text = e.text(value, "truncate");
  const TracedText tail = end == nullptr ? TracedText("...") : e.text(*end, "truncate");
  const int64_t most = length == nullptr ? 255 : e.integer(*length, "truncate");
  const int64_t extra = leeway == nullptr || leeway->is_none() ? 5 : e.integer(*leeway, "truncate");
  const auto tail_length = static_cast<int64_t>(length_of(tail.bytes()));
  if (most < tail_length || extra < 0) e.fail("the filter truncate: the length is too small");
  e.charge_scan(text.size() + tail.size());
  const CharacterPlaces places(text.bytes());
  const auto count = static_cast<int64_t>(places.count());
  if (count - extra <= most) return e.make(text);
  TracedText cut = text.slice(0, places[static_cast<size_t>(most - tail_length)]);
  if (kill == nullptr || !truth(*kill))
    if (const size_t space = cut.bytes().rfind(' '); space != std::string::npos) cut = cut.slice(0, space);
  cut.append(tail);
  return e.make(std::move(cut));
}

struct NamedFilter {
  std::string_view name;
  Filter run;
};

constexpr std::array kTextFilters = {
    NamedFilter{"abs", abs_filter},
    NamedFilter{"capitalize", as_method<kCapitalize>},
    NamedFilter{"d", default_filter},
    NamedFilter{"default", default_filter},
    NamedFilter{"e", escape},
    NamedFilter{"escape", escape},
    NamedFilter{"float", float_filter},
    NamedFilter{"format", format_filter},
    NamedFilter{"indent", indent},
    NamedFilter{"int", int_filter},
    NamedFilter{"lower", as_method<kLower>},
    NamedFilter{"replace", replace_filter},
    NamedFilter{"round", round_filter},
    NamedFilter{"safe", string_filter},
    NamedFilter{"string", string_filter},
    NamedFilter{"title", title_filter},
    NamedFilter{"tojson", to_json},
    NamedFilter{"trim", as_method<kStrip>},
    NamedFilter{"truncate", truncate},
    NamedFilter{"upper", as_method<kUpper>},
};

}  // namespace

Filter find_text_filter(std::string_view name) {
  const auto found = std::find_if(kTextFilters.begin(), kTextFilters.end(),
                                  [&](const NamedFilter& f) { return f.name == name; });
  return found == kTextFilters.end() ? nullptr : found->run;
}

Filter find_filter(std::string_view name) {
  const Filter found = find_text_filter(name);
  return found != nullptr ? found : find_list_filter(name);
}

}  // namespace pleat::data::jinja
