// Methods of strings.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "data/template/evaluator.h"
#include "data/template/python_text.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data::jinja {
namespace {

using TextMethod = Value (*)(Evaluator&, const TracedText&, CallArguments&);

// What strip() takes away: the characters of a text, or white space.
class Stripped {
 public:
  explicit Stripped(const TracedText* characters) : characters_(characters) {
    if (characters == nullptr || characters->size() <= 16) return;
    known_.resize(0x110000);
    for (size_t at = 0; at < characters->size();) known_[next_code_point(characters->bytes(), at)] = true;
  }
  bool holds(std::string_view character) const {
    size_t at = 0;
    if (characters_ == nullptr) return is_python_space(next_code_point(character, at));
    if (known_.empty()) return characters_->bytes().find(character) != std::string::npos;
    return known_[next_code_point(character, at)];
  }

 private:
  const TracedText* characters_;
  std::vector<bool> known_;  // of many characters, by their numbers
};

// Without the characters of the argument, or white space, at the chosen ends.
Value strip(Evaluator& e, const TracedText& self, CallArguments& arguments, bool left, bool right) {
  const Value* given = arguments.get(0, "chars");
  const TracedText* characters = given == nullptr || given->is_none() ? nullptr : &e.text(*given, "strip()");
  if (characters != nullptr && characters->size() > 16)
    e.charge(64 + static_cast<int64_t>(characters->size() / 8));
  const Stripped stripped(characters);
  const std::string_view text = self.bytes();
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    size_t next = begin;
    next_code_point(text, next);
    if (!stripped.holds(text.substr(begin, next - begin))) break;
    begin = next;
  }
  while (right && end > begin) {
    const size_t start = previous_character(text, end);
    if (!stripped.holds(text.substr(start, end - start))) break;
    end = start;
  }
  e.charge_letters(self.size() - (end - begin));
  return e.make(self.slice(begin, end));
}

Value split_at_space(Evaluator& e, const TracedText& self, int64_t most, bool from_right) {
  const std::string_view text = self.bytes();
  e.charge_letters(text.size());
  std::vector<Value> parts;
  if (!from_right) {
    for (size_t at = skip_space(text, 0); at < text.size();) {
      size_t end = at;
      while (end < text.size() && skip_space(text, end) == end) next_code_point(text, end);
      if (most >= 0 && static_cast<int64_t>(parts.size()) == most) end = text.size();
      parts.push_back(e.make(self.slice(at, end)));
      if (most >= 0 && static_cast<int64_t>(parts.size()) > most) break;
      at = skip_space(text, end);
    }
    return e.make_list(std::move(parts));
  }
  for (size_t end = skip_space_back(text, text.size()); end > 0;) {
    size_t begin = end;
    while (begin > 0 && skip_space_back(text, begin) == begin) begin = previous_character(text, begin);
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) begin = 0;
    parts.push_back(e.make(self.slice(begin, end)));
    if (most >= 0 && static_cast<int64_t>(parts.size()) > most) break;
    end = skip_space_back(text, begin);
  }
  std::reverse(parts.begin(), parts.end());
  return e.make_list(std::move(parts));
}

Value split(Evaluator& e, const TracedText& self, CallArguments& arguments, bool from_right) {
  const Value* given = arguments.get(0, "sep");
  const Value* limit = arguments.get(1, "maxsplit");
  const int64_t most = limit == nullptr ? -1 : e.integer(*limit, "split()");
  if (given == nullptr || given->is_none()) return split_at_space(e, self, most, from_right);
  const std::string& separator = e.text(*given, "split()").bytes();
  if (separator.empty()) e.fail("split(): the separator is empty");
  const std::string& text = self.bytes();
  e.charge_scan(text.size() + separator.size());
  std::vector<Value> parts;
  const auto more = [&] { return most < 0 || static_cast<int64_t>(parts.size()) < most; };
  if (!from_right) {
    size_t begin = 0;
    for (size_t at; more() && (at = find_text(text, separator, begin)) != std::string::npos;
         begin = at + separator.size())
      parts.push_back(e.make(self.slice(begin, at)));
    parts.push_back(e.make(self.slice(begin, text.size())));
    return e.make_list(std::move(parts));
  }
  const BackwardSearch search(text, separator);
  size_t end = text.size();
  while (more()) {
    const size_t at = search.before(end);
    if (at == std::string::npos) break;
    parts.push_back(e.make(self.slice(at + separator.size(), end)));
    end = at;
  }
  parts.push_back(e.make(self.slice(0, end)));
  std::reverse(parts.begin(), parts.end());
  return e.make_list(std::move(parts));
}

Value partition(Evaluator& e, const TracedText& self, CallArguments& arguments, bool from_right) {
  const Value* given = arguments.get(0, {});
  if (given == nullptr) e.fail("partition() needs a separator");
  const TracedText& separator = e.text(*given, "partition()");
  if (separator.empty()) e.fail("partition(): the separator is empty");
  e.charge_scan(self.size() + separator.size());
  const size_t at = from_right ? BackwardSearch(self.bytes(), separator.bytes()).before(self.size())
                               : find_text(self.bytes(), separator.bytes());
  const Value empty = e.make(std::string());
  if (at == std::string::npos) {
    const Value whole = e.make(self);
    return e.make_list(
        from_right ? std::vector<Value>{empty, empty, whole} : std::vector<Value>{whole, empty, empty},
        ListKind::Tuple);
  }
  return e.make_list({e.make(self.slice(0, at)), e.make(self.slice(at, at + separator.size())),
                      e.make(self.slice(at + separator.size(), self.size()))},
                     ListKind::Tuple);
}

// The part of the text that optional bounds at places `place` and place + 1 name, in bytes. False where the
// first lies behind the end.
bool bounds(Evaluator& e, const TracedText& self, CallArguments& arguments, size_t place, size_t& begin,
            size_t& end) {
  begin = 0;
  end = self.size();
  const Value* from = arguments.get(place, {});
  const Value* to = arguments.get(place + 1, {});
  if (from == nullptr) return true;
  e.charge_scan(self.size());
  const CharacterPlaces places(self.bytes());
  const auto count = static_cast<int64_t>(places.count());
  const auto place_of = [&](const Value* v, int64_t otherwise) {
    if (v == nullptr || v->is_none()) return otherwise;
    int64_t at = e.integer(*v, "a bound");
    if (at < 0) at = at < -count ? 0 : at + count;
    return at;
  };
  const int64_t first = place_of(from, 0), last = std::min(place_of(to, count), count);
  if (first > count || first > last) return false;
  begin = places[static_cast<size_t>(first)];
  end = places[static_cast<size_t>(last)];
  return true;
}

Value starts_or_ends(Evaluator& e, const TracedText& self, CallArguments& arguments, bool at_end) {
  const Value* given = arguments.get(0, {});
  if (given == nullptr) e.fail("startswith() and endswith() need a string");
  size_t begin = 0, end = 0;
  const bool inside = bounds(e, self, arguments, 1, begin, end);
  const std::string_view text = std::string_view(self.bytes()).substr(begin, end - begin);
  const auto fits = [&](const Value& v) {
    const std::string& wanted = e.text(v, "startswith() or endswith()").bytes();
    e.charge(1);
    if (wanted.size() <= text.size()) e.charge_copy(wanted.size());
    return at_end ? text.ends_with(wanted) : text.starts_with(wanted);
  };
  if (const List* list = given->list(); list != nullptr && list->kind == ListKind::Tuple) {
    bool some = false;
    for (const Value& v : list->items) some |= fits(v);
    return inside && some;
  }
  return fits(*given) && inside;
}

Value find(Evaluator& e, const TracedText& self, CallArguments& arguments, bool from_right, bool must) {
  const Value* given = arguments.get(0, {});
  if (given == nullptr) e.fail("find() and index() need a string");
  const std::string& wanted = e.text(*given, "find()").bytes();
  size_t begin = 0, end = 0;
  if (bounds(e, self, arguments, 1, begin, end)) {
    e.charge_scan(self.size() + wanted.size());
    const std::string_view text = std::string_view(self.bytes()).substr(begin, end - begin);
    const size_t at = from_right ? BackwardSearch(text, wanted).before(text.size()) : find_text(text, wanted);
    if (at != std::string_view::npos)
      return static_cast<int64_t>(length_of(std::string_view(self.bytes()).substr(0, begin + at)));
  }
  if (must) e.fail("index(): the string does not hold what is looked for");
  return int64_t{-1};
}

Value count(Evaluator& e, const TracedText& self, CallArguments& arguments) {
  const Value* given = arguments.get(0, {});
  if (given == nullptr) e.fail("count() needs a string");
  const std::string& wanted = e.text(*given, "count()").bytes();
  size_t begin = 0, end = 0;
  if (!bounds(e, self, arguments, 1, begin, end)) return int64_t{0};
  const std::string_view text = std::string_view(self.bytes()).substr(begin, end - begin);
  e.charge_scan(text.size() + wanted.size());
  if (wanted.empty()) return static_cast<int64_t>(length_of(text)) + 1;
  int64_t n = 0;
  for (size_t at = 0; (at = find_text(text, wanted, at)) != std::string_view::npos; at += wanted.size()) {
    e.charge_lookup(wanted.size() + 4);
    ++n;
  }
  return n;
}

Value remove_affix(Evaluator& e, const TracedText& self, CallArguments& arguments, bool at_end) {
  const Value* given = arguments.get(0, {});
  if (given == nullptr) e.fail("removeprefix() and removesuffix() need a string");
  const std::string& affix = e.text(*given, "removeprefix() or removesuffix()").bytes();
  const bool there = at_end ? self.bytes().ends_with(affix) : self.bytes().starts_with(affix);
  if (!there) return e.make(self);
  return e.make(at_end ? self.slice(0, self.size() - affix.size()) : self.slice(affix.size(), self.size()));
}

Value split_lines(Evaluator& e, const TracedText& self, CallArguments& arguments) {
  const Value* keep = arguments.get(0, "keepends");
  std::vector<Value> lines;
  e.charge_scan(self.size());
  for_each_line(self.bytes(), keep != nullptr && truth(*keep),
                [&](size_t begin, size_t end) { lines.push_back(e.make(self.slice(begin, end))); });
  return e.make_list(std::move(lines));
}

Value join(Evaluator& e, const TracedText& self, CallArguments& arguments) {
  const Value* given = arguments.get(0, {});
  if (given == nullptr) e.fail("join() needs a list");
  TracedText out;
  bool first = true;
  for (const Value& item : e.items_of(*given)) {
    if (!std::exchange(first, false)) out.append(self);
    out.append(e.text(item, "join()"));
    e.charge_copy(self.memory() + item.text()->memory());
    e.check_room(out);
  }
  return e.make(std::move(out));
}

template <CharacterClass kClass>
Value is_all(Evaluator& e, const TracedText& self, CallArguments&) {
  e.charge_letters(2 * self.size());
  return all_of(self.bytes(), kClass);
}

template <auto kConvert, bool kOneByOne = false>
Value convert(Evaluator& e, const TracedText& self, CallArguments&) {
  e.charge_letters((kOneByOne ? 4 : 1) * self.size());
  return e.make(self.converted(kConvert));
}

// First characters matter: the marks of a text of several origins go with its first.
Value recased(Evaluator& e, const TracedText& self, std::string (*change)(std::string_view)) {
  e.charge_letters(8 * self.size());
  TextMark mark;
  bool first = true, same = true;
  self.for_each_run([&](size_t, size_t, TextMark m) {
    same &= std::exchange(first, false) || m == mark;
    mark = m;
  });
  if (same) return e.make(TracedText(change(self.bytes()), mark));
  // Letter by letter, as long as none changes its length.
  const std::string changed = change(self.bytes());
  if (changed.size() != self.size()) return e.make(TracedText(changed));
  TracedText out;
  self.for_each_run([&](size_t begin, size_t end, TextMark m) {
    out.append(std::string_view(changed).substr(begin, end - begin), m);
  });
  return e.make(std::move(out));
}

struct NamedMethod {
  std::string_view name;
  TextMethod run;
};

constexpr std::array kMethods = {
    NamedMethod{"capitalize",
                [](Evaluator& e, const TracedText& s, CallArguments&) { return recased(e, s, capitalize); }},
    NamedMethod{"count", count},
    NamedMethod{"endswith", [](Evaluator& e, const TracedText& s,
                               CallArguments& a) { return starts_or_ends(e, s, a, true); }},
    NamedMethod{"find", [](Evaluator& e, const TracedText& s,
                           CallArguments& a) { return find(e, s, a, false, false); }},
    NamedMethod{"format",
                [](Evaluator& e, const TracedText& s, CallArguments& a) { return format_braces(e, s, a); }},
    NamedMethod{"index", [](Evaluator& e, const TracedText& s,
                            CallArguments& a) { return find(e, s, a, false, true); }},
    NamedMethod{"isalnum", is_all<CharacterClass::Alnum>},
    NamedMethod{"isalpha", is_all<CharacterClass::Alpha>},
    NamedMethod{"isdigit", is_all<CharacterClass::Digit>},
    NamedMethod{"islower", is_all<CharacterClass::Lower>},
    NamedMethod{"isspace", is_all<CharacterClass::Space>},
    NamedMethod{"isupper", is_all<CharacterClass::Upper>},
    NamedMethod{"join", join},
    NamedMethod{"lower", convert<lower>},
    NamedMethod{"lstrip", [](Evaluator& e, const TracedText& s,
                             CallArguments& a) { return strip(e, s, a, true, false); }},
    NamedMethod{"partition", [](Evaluator& e, const TracedText& s,
                                CallArguments& a) { return partition(e, s, a, false); }},
    NamedMethod{"removeprefix", [](Evaluator& e, const TracedText& s,
                                   CallArguments& a) { return remove_affix(e, s, a, false); }},
    NamedMethod{"removesuffix", [](Evaluator& e, const TracedText& s,
                                   CallArguments& a) { return remove_affix(e, s, a, true); }},
    NamedMethod{"replace",
                [](Evaluator& e, const TracedText& s, CallArguments& a) {
                  const Value* from = a.get(0, {});
                  const Value* to = a.get(1, {});
                  const Value* most = a.get(2, "count");
                  if (from == nullptr || to == nullptr) e.fail("replace() needs two strings");
                  return e.make(replaced(e, s, e.text(*from, "replace()"), e.text(*to, "replace()"),
                                         most == nullptr ? -1 : e.integer(*most, "replace()")));
                }},
    NamedMethod{"rfind", [](Evaluator& e, const TracedText& s,
                            CallArguments& a) { return find(e, s, a, true, false); }},
    NamedMethod{"rpartition",
                [](Evaluator& e, const TracedText& s, CallArguments& a) { return partition(e, s, a, true); }},
    NamedMethod{"rsplit",
                [](Evaluator& e, const TracedText& s, CallArguments& a) { return split(e, s, a, true); }},
    NamedMethod{"rstrip", [](Evaluator& e, const TracedText& s,
                             CallArguments& a) { return strip(e, s, a, false, true); }},
    NamedMethod{"split",
                [](Evaluator& e, const TracedText& s, CallArguments& a) { return split(e, s, a, false); }},
    NamedMethod{"splitlines", split_lines},
    NamedMethod{"startswith", [](Evaluator& e, const TracedText& s,
                                 CallArguments& a) { return starts_or_ends(e, s, a, false); }},
    NamedMethod{"strip", [](Evaluator& e, const TracedText& s,
                            CallArguments& a) { return strip(e, s, a, true, true); }},
    NamedMethod{"swapcase", convert<swap_case, true>},
    NamedMethod{"title",
                [](Evaluator& e, const TracedText& s, CallArguments&) { return recased(e, s, title); }},
    NamedMethod{"upper", convert<upper>},
};

const NamedMethod* find_text_method(std::string_view name) {
  const auto found =
      std::find_if(kMethods.begin(), kMethods.end(), [&](const NamedMethod& m) { return m.name == name; });
  return found == kMethods.end() ? nullptr : found;
}

}  // namespace

TracedText replaced(Evaluator& e, const TracedText& self, const TracedText& from, const TracedText& to,
                    int64_t most) {
  TracedText out;
  const std::string& text = self.bytes();
  size_t done = 0;
  e.charge_scan(text.size() + from.size());
  const auto put = [&](size_t at, size_t next) {
    e.charge(1);
    e.charge_copy(from.size() + to.memory());
    out.append(self.slice(done, at));
    out.append(to);
    e.check_room(out);
    done = next;
  };
  int64_t n = 0;
  if (from.empty()) {
    for (size_t at = 0; most < 0 || n++ < most;) {
      put(at, at);
      if (at == text.size()) break;
      next_code_point(text, at);
    }
  } else {
    for (size_t at = 0;
         (most < 0 || n < most) && (at = find_text(text, from.bytes(), at)) != std::string::npos;
         at += from.size(), ++n)
      put(at, at + from.size());
  }
  out.append(self.slice(done, text.size()));
  return out;
}

bool is_text_method(std::string_view name) { return find_text_method(name) != nullptr; }

bool is_method(std::string_view name) {
  static constexpr std::string_view kOthers[] = {"get",    "items",  "keys",    "values",  "copy",
                                                 "index",  "count",  "cycle",   "changed", "pop",
                                                 "clear",  "update", "append",  "popitem", "setdefault",
                                                 "insert", "sort",   "reverse", "extend",  "remove"};
  return is_text_method(name) || std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers);
}

Value call_text_method(Evaluator& e, const Text& self, std::string_view name, CallArguments& arguments) {
  e.charge(1 + static_cast<int64_t>(self->size() / 64));
  return find_text_method(name)->run(e, *self, arguments);
}

}  // namespace pleat::data::jinja
