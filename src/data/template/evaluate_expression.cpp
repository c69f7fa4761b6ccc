// Expressions: names, lookups, calls.
#include <algorithm>

#include "base/error.h"
#include "data/template/evaluator.h"
#include "data/template/python_text.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data::jinja {
namespace {

bool changes_list(std::string_view name) {
  static constexpr std::string_view kNames[] = {"append", "clear", "pop",    "reverse",
                                                "insert", "sort",  "extend", "remove"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

bool changes_dict(std::string_view name) {
  static constexpr std::string_view kNames[] = {"clear", "pop", "popitem", "setdefault", "update"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace

void Evaluator::check_used(const Value& value) const {
  if (const Undefined* undefined = value.undefined()) fail(undefined->why);
}

Value Evaluator::evaluate(const Expression& e) {
  const Level level(*this);
  charge(1);
  line_ = e.line;
  switch (e.kind) {
    case ExpressionKind::Constant:
      return e.constant;
    case ExpressionKind::Name:
      return name(e);
    case ExpressionKind::List:
    case ExpressionKind::Tuple: {
      std::vector<Value> items;
      for (const ExpressionPtr& part : e.parts) items.push_back(evaluate(*part));
      return make_list(std::move(items), e.kind == ExpressionKind::List ? ListKind::List : ListKind::Tuple);
    }
    case ExpressionKind::Dict:
      return dict(e);
    case ExpressionKind::Attribute: {
      const Value object = evaluate(*e.parts[0]);
      line_ = e.line;
      return attribute(object, e.name);
    }
    case ExpressionKind::Item: {
      const Value object = evaluate(*e.parts[0]);
      const Value key = evaluate(*e.parts[1]);
      line_ = e.line;
      return item(object, key);
    }
    case ExpressionKind::Slice:
      return slice(e);
    case ExpressionKind::Call:
      return evaluate_call(e, {});
    case ExpressionKind::Filter: {
      const Value value = evaluate(*e.parts[0]);
      CallArguments given = arguments(e.arguments);
      line_ = e.line;
      return filter(e.name, value, given);
    }
    case ExpressionKind::Test: {
      const Value value = evaluate(*e.parts[0]);
      CallArguments given = arguments(e.arguments);
      line_ = e.line;
      return test(e.name, value, given);
    }
    case ExpressionKind::Not:
      return !truth(evaluate(*e.parts[0]));
    case ExpressionKind::Minus:
    case ExpressionKind::Plus: {
      const Value value = evaluate(*e.parts[0]);
      line_ = e.line;
      check_used(value);
      int64_t i = 0;
      if (value.as_integer(i)) return e.kind == ExpressionKind::Minus ? arithmetic("-", int64_t{0}, i) : i;
      if (const double* d = value.real()) return e.kind == ExpressionKind::Minus ? -*d : *d;
      fail(fmt::format("a sign needs a number, not a {}", type_name(value)));
    }
    case ExpressionKind::And: {
      Value left = evaluate(*e.parts[0]);
      return truth(left) ? evaluate(*e.parts[1]) : left;
    }
    case ExpressionKind::Or: {
      Value left = evaluate(*e.parts[0]);
      return truth(left) ? left : evaluate(*e.parts[1]);
    }
    case ExpressionKind::Conditional:
      if (truth(evaluate(*e.parts[1]))) return evaluate(*e.parts[0]);
      if (e.parts[2]) return evaluate(*e.parts[2]);
      return make_undefined("the inline if-expression evaluated to false and no else section was defined");
    case ExpressionKind::Compare:
      return compare(e);
    case ExpressionKind::Concat: {
      TracedText text;
      for (const ExpressionPtr& part : e.parts) {
        const Value value = evaluate(*part);
        if (const TracedText* t = value.text())
          text.append(*t);
        else
          text.append(str(value));
        check_room(text);
      }
      line_ = e.line;
      return make(std::move(text));
    }
    case ExpressionKind::Arithmetic: {
      const Value a = evaluate(*e.parts[0]);
      const Value b = evaluate(*e.parts[1]);
      line_ = e.line;
      return arithmetic(e.name, a, b);
    }
  }
  return {};
}

Value Evaluator::name(const Expression& e) {
  if (const Value* found = lookup(e.name)) return *found;
  if (is_global(e.name)) {
    auto function = std::make_shared<Function>();
    function->name = e.name;
    return function;
  }
  return make_undefined(fmt::format("'{}' is undefined", shown(e.name)));
}

Value Evaluator::dict(const Expression& e) {
  std::vector<std::pair<Value, Value>> items;
  for (size_t i = 0; i < e.parts.size(); i += 2) {
    Value key = evaluate(*e.parts[i]);
    if (!is_hashable(key)) fail(fmt::format("a {} cannot be a key", type_name(key)));
    Value value = evaluate(*e.parts[i + 1]);
    charge_lookup(items.size());
    const auto same =
        std::find_if(items.begin(), items.end(), [&](const auto& item) { return equal(item.first, key); });
    if (same != items.end())
      same->second = std::move(value);
    else
      items.emplace_back(std::move(key), std::move(value));
  }
  return make_dict(std::move(items));
}

CallArguments Evaluator::arguments(const Arguments& given) {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  for (const ExpressionPtr& e : given.positional) positional.push_back(evaluate(*e));
  for (const auto& [name, e] : given.named) named.emplace_back(name, evaluate(*e));
  if (given.star)
    for (Value& item : items_of(evaluate(*given.star))) positional.push_back(std::move(item));
  if (given.star_star) {
    const Value map = evaluate(*given.star_star);
    if (map.dict() == nullptr) fail(fmt::format("** needs a map, not a {}", type_name(map)));
    for (const auto& [key, value] : map.dict()->items) {
      if (key.text() == nullptr) fail("the names of arguments are strings");
      charge(1);
      charge_lookup(named.size());
      charge_copy(key.text()->size());
      for (const auto& known : named)
        if (known.first == key.text()->bytes()) fail(fmt::format("{} is given twice", shown(known.first)));
      named.emplace_back(key.text()->bytes(), value);
    }
  }
  return {std::move(positional), std::move(named)};
}

Value Evaluator::evaluate_call(const Expression& e, std::vector<std::pair<std::string, Value>> further) {
  const Value callee = evaluate(*e.parts[0]);
  CallArguments given = arguments(e.arguments);
  line_ = e.line;
  if (!further.empty()) {
    std::vector<std::pair<std::string, Value>> named = given.all_named();
    named.insert(named.end(), further.begin(), further.end());
    given = CallArguments(given.positional(), std::move(named));
  }
  return call(callee, given);
}

Value Evaluator::call(const Value& callee, CallArguments& arguments) {
  check_used(callee);
  const Function* function = callee.function();
  if (function == nullptr) fail(fmt::format("a {} cannot be called", type_name(callee)));
  Value result;
  switch (function->kind) {
    case Function::Kind::Macro:
      return call_macro(*function, arguments);
    case Function::Kind::Method:
      result = call_method(*function, arguments);
      break;
    case Function::Kind::Global:
      result = call_global(*this, function->name, arguments);
      break;
  }
  if (!arguments.all_taken()) fail(fmt::format("{}() got arguments it does not take", function->name));
  return result;
}

Value Evaluator::call_method(const Function& function, CallArguments& arguments) {
  const Value& self = function.self;
  const std::string& name = function.name;
  if (self.text() != nullptr) return call_text_method(*this, std::get<Text>(self.held()), name, arguments);
  if (const Dict* dict = self.dict()) {
    if (name == "get") {
      const Value* key = arguments.get(0, {});
      if (key == nullptr) fail("get() needs a key");
      const Value* otherwise = arguments.get(1, {});
      if (!is_hashable(*key)) fail(fmt::format("a {} cannot be a key", type_name(*key)));
      if (const Value* found = find(*dict, *key)) return *found;
      return otherwise == nullptr ? Value() : *otherwise;
    }
    if (name == "copy") return make_dict(dict->items, dict->message);
    charge(static_cast<int64_t>(dict->items.size()));
    std::vector<Value> items;
    for (const auto& [key, value] : dict->items)
      items.push_back(name == "keys"     ? key
                      : name == "values" ? value
                                         : make_list({key, value}, ListKind::Tuple));
    return make_list(std::move(items), name == "keys"     ? ListKind::Keys
                                       : name == "values" ? ListKind::Values
                                                          : ListKind::Items);
  }
  if (const Loop* loop = self.loop()) {
    if (name == "cycle") {
      const size_t n = arguments.positional().size();
      if (n == 0) fail("loop.cycle() needs values");
      arguments.get(n - 1, {});
      return arguments.positional()[loop->index % n];
    }
    std::vector<Value> now;  // changed
    for (size_t i = 0; i < arguments.positional().size(); ++i) now.push_back(*arguments.get(i, {}));
    Value seen = make_list(std::move(now), ListKind::Tuple);
    Loop& mine = *self.loop();
    if (depth_of(seen) + 1 > mine.depth) mine.depth = depth_of(seen) + 1;
    const bool changed = !mine.has_changed || !equal(mine.last_changed, seen);
    mine.last_changed = std::move(seen);
    mine.has_changed = true;
    return changed;
  }
  const List& list = *self.list();
  const Value* wanted = arguments.get(0, {});
  if (wanted == nullptr) fail(fmt::format("{}() needs a value", name));
  int64_t count = 0;
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (!equal(list.items[i], *wanted)) continue;
    if (name == "index") return static_cast<int64_t>(i);
    ++count;
  }
  if (name == "index") fail("index(): the list does not hold the value");
  return count;
}

Value Evaluator::attribute(const Value& object, const std::string& name) {
  check_used(object);
  const auto missing = [&] {
    return make_undefined(fmt::format("'{} object' has no attribute '{}'", type_name(object), shown(name)));
  };
  const auto unsafe = [&] {
    return make_undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe", shown(name), type_name(object)));
  };
  if (const Dict* dict = object.dict()) {
    if (changes_dict(name)) return unsafe();
    if (name == "get" || name == "items" || name == "keys" || name == "values" || name == "copy")
      return method(object, name);
    const Value* found = find(*dict, std::string_view(name));
    return found == nullptr ? missing() : *found;
  }
  if (object.text() != nullptr) return is_text_method(name) ? method(object, name) : missing();
  if (const List* list = object.list()) {
    if (list->kind == ListKind::List && changes_list(name)) return unsafe();
    const bool counts =
        list->kind == ListKind::List || list->kind == ListKind::Tuple || list->kind == ListKind::Range;
    return counts && (name == "index" || name == "count") ? method(object, name) : missing();
  }
  if (const Space* space = object.space()) {
    charge_lookup(space->members.size());
    for (const auto& member : space->members)
      if (member.first == name) return member.second;
    return missing();
  }
  if (const Loop* loop = object.loop()) {
    const List& list = *loop->sequence.list();
    const auto index = static_cast<int64_t>(loop->index), count = static_cast<int64_t>(list.items.size());
    if (name == "index") return index + 1;
    if (name == "index0") return index;
    if (name == "revindex") return count - index;
    if (name == "revindex0") return count - index - 1;
    if (name == "first") return index == 0;
    if (name == "last") return index + 1 == count;
    if (name == "length") return count;
    if (name == "depth") return int64_t{1};
    if (name == "depth0") return int64_t{0};
    if (name == "previtem")
      return index == 0 ? make_undefined("there is no previous item") : list.items[loop->index - 1];
    if (name == "nextitem")
      return index + 1 == count ? make_undefined("there is no next item") : list.items[loop->index + 1];
    if (name == "cycle" || name == "changed") return method(object, name);
    return missing();
  }
  if (const Function* function = object.function();
      function != nullptr && function->macro != nullptr && name == "name")
    return make(function->name);
  return missing();
}

Value Evaluator::item(const Value& object, const Value& key) {
  check_used(object);
  int64_t index = 0;
  if (const Dict* dict = object.dict()) {
    if (is_hashable(key))
      if (const Value* found = find(*dict, key)) return *found;
  } else if (key.as_integer(index)) {
    const List* list = object.list();
    if (list != nullptr &&
        (list->kind == ListKind::List || list->kind == ListKind::Tuple || list->kind == ListKind::Range)) {
      const auto count = static_cast<int64_t>(list->items.size());
      if (index < 0) index += count;
      if (index >= 0 && index < count) return list->items[static_cast<size_t>(index)];
    } else if (const TracedText* text = object.text()) {
      charge_scan(text->size());
      const CharacterPlaces places(text->bytes());
      const auto count = static_cast<int64_t>(places.count());
      if (index < 0) index += count;
      if (index >= 0 && index < count)
        return make(text->slice(places[static_cast<size_t>(index)], places[static_cast<size_t>(index) + 1]));
    }
  }
  if (const TracedText* name = key.text())
    if (object.dict() == nullptr || find(*object.dict(), key) == nullptr)
      return attribute(object, name->bytes());
  return make_undefined(
      fmt::format("'{} object' has no element {}", type_name(object), shown(str(key).bytes())));
}

Value Evaluator::path(const Value& object, const Value& path) {
  if (path.is_none()) return object;
  const TracedText* text = path.text();
  if (text == nullptr) return item(object, path);
  Value at = object;
  const std::string& names = text->bytes();
  for (size_t begin = 0; begin <= names.size();) {
    charge(1);
    const size_t dot = std::min(names.find('.', begin), names.size());
    const std::string part = names.substr(begin, dot - begin);
    if (all_of(part, CharacterClass::Digit) && part.size() < 10)
      at = item(at, static_cast<int64_t>(std::stoll(part)));
    else
      at = item(at, make(part));
    begin = dot + 1;
  }
  return at;
}

Value Evaluator::slice(const Expression& e) {
  const Value object = evaluate(*e.parts[0]);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i)
    if (e.parts[i + 1]) bounds[i] = evaluate(*e.parts[i + 1]);
  line_ = e.line;
  check_used(object);
  const TracedText* text = object.text();
  const List* list = object.list();
  if (list != nullptr && list->kind != ListKind::List && list->kind != ListKind::Tuple &&
      list->kind != ListKind::Range)
    list = nullptr;
  if (text == nullptr && list == nullptr) fail(fmt::format("a {} cannot be sliced", type_name(object)));
  for (const Value& bound : bounds) {
    int64_t ignored = 0;
    check_used(bound);
    if (!bound.is_none() && !bound.as_integer(ignored))
      fail(fmt::format("the bounds of a slice are integers, not a {}", type_name(bound)));
  }
  if (text != nullptr) charge_scan(text->size());
  const CharacterPlaces places(text != nullptr ? std::string_view(text->bytes()) : std::string_view());
  const auto count = static_cast<int64_t>(text != nullptr ? places.count() : list->items.size());
  int64_t step = 1;
  bounds[2].as_integer(step);
  if (step == 0) fail("the step of a slice is 0");
  const auto clamped = [&](const Value& bound, int64_t otherwise) {
    int64_t at = 0;
    if (!bound.as_integer(at)) return otherwise;
    if (at < 0) at = at < -count ? -1 : at + count;
    return step > 0 ? std::clamp<int64_t>(at, 0, count) : std::clamp<int64_t>(at, -1, count - 1);
  };
  const int64_t begin = clamped(bounds[0], step > 0 ? 0 : count - 1);
  const int64_t end = clamped(bounds[1], step > 0 ? count : -1);
  if (text != nullptr && step == 1)
    return make(begin < end
                    ? text->slice(places[static_cast<size_t>(begin)], places[static_cast<size_t>(end)])
                    : TracedText());
  TracedText cut;
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    charge(text != nullptr ? 2 : 1);
    const auto at = static_cast<size_t>(i);
    if (text != nullptr)
      cut.append(text->slice(places[at], places[at + 1]));
    else
      items.push_back(list->items[at]);
    if (step > 0 ? step >= end - i : step <= end - i) break;
    i += step;
  }
  if (text != nullptr) return make(std::move(cut));
  return make_list(std::move(items), list->kind);
}

Value Evaluator::filter(std::string_view name, const Value& value, CallArguments& arguments) {
  charge(1);
  const Filter found = find_filter(name);
  if (found == nullptr) fail(fmt::format("the filter \"{}\" is not supported", shown(name, 40)));
  Value result = found(*this, value, arguments);
  if (!arguments.all_taken()) fail(fmt::format("the filter {} got arguments it does not take", name));
  return result;
}

bool Evaluator::test(std::string_view name, const Value& value, CallArguments& arguments) {
  charge(1);
  const Test found = find_test(name);
  if (found == nullptr) fail(fmt::format("the test \"{}\" is not supported", shown(name, 40)));
  const bool result = found(*this, value, arguments);
  if (!arguments.all_taken()) fail(fmt::format("the test {} got arguments it does not take", name));
  return result;
}

}  // namespace pleat::data::jinja
