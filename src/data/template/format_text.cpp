// "%s" % value and "{}".format(value), as far as templates use them.
#include <algorithm>

#include "base/error.h"
#include "data/template/evaluator.h"
#include "data/template/python_text.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data::jinja {
namespace {

bool is_decimal(char c) { return c >= '0' && c <= '9'; }

// Up to four digits from `at` on; -1 for none.
int number_at(Evaluator& e, const std::string& text, size_t& at) {
  if (at >= text.size() || !is_decimal(text[at])) return -1;
  int out = 0;
  for (; at < text.size() && is_decimal(text[at]); ++at) {
    out = out * 10 + (text[at] - '0');
    if (out > 9999) e.fail("a format asks for more than 9999 characters");
  }
  return out;
}

// Where this character starts, or the end.
size_t byte_of(std::string_view text, size_t character) {
  const CharacterPlaces places(text);
  return places[std::min(character, places.count())];
}

void pad(TracedText& text, int width, char fill, bool left) {
  const auto length = static_cast<int>(length_of(text.bytes()));
  if (length >= width) return;
  const std::string blanks(static_cast<size_t>(width - length), fill);
  TracedText out;
  if (left) {
    out = text;
    out.append(blanks);
  } else {
    const bool sign = fill == '0' && !text.empty() && (text.bytes()[0] == '-' || text.bytes()[0] == '+');
    if (sign) out.append(text.slice(0, 1));
    out.append(blanks);
    out.append(text.slice(sign ? 1 : 0, text.size()));
  }
  text = std::move(out);
}

TracedText number(Evaluator& e, const Value& value, char kind, int precision) {
  double real = 0;
  int64_t whole = 0;
  if (kind == 'd' || kind == 'i' || kind == 'x') {
    if (const double* d = value.real(); d != nullptr && kind != 'x' && *d > -9e18 && *d < 9e18)
      whole = static_cast<int64_t>(*d);
    else
      whole = e.integer(value, "a format");
    return TracedText(kind == 'x' ? fmt::format("{:x}", whole) : std::to_string(whole));
  }
  if (!value.as_real(real)) e.fail(fmt::format("a format needs a number, not a {}", type_name(value)));
  return TracedText(fmt::format("{:.{}f}", real, precision < 0 ? 6 : precision));
}

}  // namespace

Value format_percent(Evaluator& e, const TracedText& format, const Value& values) {
  const std::string& text = format.bytes();
  const List* tuple =
      values.list() != nullptr && values.list()->kind == ListKind::Tuple ? values.list() : nullptr;
  size_t used = 0;
  TracedText out;
  size_t done = 0;
  e.charge_scan(text.size());
  for (size_t at = 0; (at = text.find('%', at)) != std::string::npos;) {
    out.append(format.slice(done, at));
    ++at;
    bool zero = false, left = false;
    for (; at < text.size() && (text[at] == '0' || text[at] == '-'); ++at)
      (text[at] == '0' ? zero : left) = true;
    const int width = number_at(e, text, at);
    int precision = -1;
    if (at < text.size() && text[at] == '.') {
      ++at;
      precision = std::max(0, number_at(e, text, at));
    }
    if (at >= text.size()) e.fail("a format ends in %");
    const char kind = text[at++];
    if (kind == '%') {
      out.append("%");
      done = at;
      continue;
    }
    e.charge(1 + (std::max(width, 0) + std::max(precision, 0)) / 8);
    if (std::string_view("srdixf").find(kind) == std::string_view::npos)
      e.fail(fmt::format("the format %{} is not supported", shown(std::string_view(&kind, 1))));
    const size_t count = tuple != nullptr ? tuple->items.size() : 1;
    if (used >= count) e.fail("a format has too few values");
    const Value& value = tuple != nullptr ? tuple->items[used] : values;
    ++used;
    TracedText piece = kind == 's'   ? e.str(value)
                       : kind == 'r' ? e.repr(value)
                                     : number(e, value, kind, precision);
    if ((kind == 's' || kind == 'r') && precision >= 0)
      piece = piece.slice(0, byte_of(piece.bytes(), static_cast<size_t>(precision)));
    e.charge_scan(piece.size());
    pad(piece, width, zero && !left && kind != 's' && kind != 'r' ? '0' : ' ', left);
    out.append(piece);
    e.check_room(out);
    done = at;
  }
  if (tuple != nullptr ? used < tuple->items.size() : used == 0 && values.dict() == nullptr)
    e.fail("a format has more values than places");
  out.append(format.slice(done, text.size()));
  return e.make(std::move(out));
}

Value format_braces(Evaluator& e, const TracedText& format, CallArguments& arguments) {
  const std::string& text = format.bytes();
  TracedText out;
  size_t done = 0, next = 0;
  for (size_t i = 0; i < arguments.positional().size(); ++i) arguments.get(i, {});
  for (const auto& named : arguments.all_named()) {
    e.charge_lookup(arguments.all_named().size());
    arguments.named(named.first);
  }
  e.charge_scan(text.size());
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c != '{' && c != '}') {
      ++at;
      continue;
    }
    out.append(format.slice(done, at));
    if (at + 1 < text.size() && text[at + 1] == c) {
      out.append(std::string_view(&c, 1));
      done = at += 2;
      continue;
    }
    const size_t end = c == '{' ? text.find('}', at) : std::string::npos;
    if (end == std::string::npos) e.fail("format(): a single brace");
    e.charge(1);
    e.charge_lookup(arguments.all_named().size());
    std::string field = text.substr(at + 1, end - at - 1);
    if (field.find_first_of(".[:!{") != std::string::npos)
      e.fail(fmt::format("format(): the field {{{}}} is not supported; numbers and names are",
                         shown(field, 40)));
    const Value* value = nullptr;
    if (field.empty() || std::all_of(field.begin(), field.end(), is_decimal)) {
      const size_t place = field.empty()      ? next++
                           : field.size() < 5 ? std::stoul(field)
                                              : arguments.positional().size();
      if (place < arguments.positional().size()) value = &arguments.positional()[place];
    } else {
      for (const auto& named : arguments.all_named())
        if (named.first == field) value = &named.second;
    }
    if (value == nullptr) e.fail(fmt::format("format(): nothing is given for {{{}}}", shown(field, 40)));
    out.append(e.str(*value));
    e.check_room(out);
    done = at = end + 1;
  }
  out.append(format.slice(done, text.size()));
  return e.make(std::move(out));
}

}  // namespace pleat::data::jinja
