// Functions a template finds without anybody giving them.
#include <algorithm>
#include <ctime>

#include "base/error.h"
#include "data/template/evaluator.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data::jinja {
namespace {

Value range(Evaluator& e, CallArguments& arguments) {
  const Value* bounds[3];
  for (size_t i = 0; i < 3; ++i) bounds[i] = arguments.get(i, {});
  if (bounds[0] == nullptr) e.fail("range() needs a number");
  int64_t begin = 0, end = e.integer(*bounds[0], "range()"), step = 1;
  if (bounds[1] != nullptr) begin = std::exchange(end, e.integer(*bounds[1], "range()"));
  if (bounds[2] != nullptr) step = e.integer(*bounds[2], "range()");
  if (step == 0) e.fail("range(): the step is 0");
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(items.size()) >= e.limits().range_items)
      e.fail(fmt::format("range() of more than {} numbers", e.limits().range_items));
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return e.make_list(std::move(items), ListKind::Range);
}

// dict(map, name=value, ...); of a message it stays that message.
Value make_dict(Evaluator& e, CallArguments& arguments) {
  std::vector<std::pair<Value, Value>> items;
  int32_t message = -1;
  const auto set = [&](const Value& key, const Value& value) {
    if (!is_hashable(key)) e.fail(fmt::format("a {} cannot be a key", type_name(key)));
    e.charge(1);
    e.charge_lookup(items.size());
    for (auto& item : items)
      if (e.equal(item.first, key)) {
        item.second = value;
        return;
      }
    items.emplace_back(key, value);
  };
  if (const Value* from = arguments.get(0, {})) {
    if (const Dict* dict = from->dict()) {
      message = dict->message;
      for (const auto& [key, value] : dict->items) set(key, value);
    } else {
      for (const Value& pair : e.items_of(*from)) {
        const std::vector<Value> two = e.items_of(pair);
        if (two.size() != 2) e.fail("dict() needs pairs");
        set(two[0], two[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.all_named()) {
    e.charge_lookup(arguments.all_named().size());
    arguments.named(name);
    set(e.make(name), value);
  }
  return e.make_dict(std::move(items), message);
}

Value make_space(Evaluator& e, CallArguments& arguments) {
  std::vector<std::pair<std::string, Value>> members;
  const auto set = [&](const std::string& name, const Value& value) {
    if (name.starts_with('_')) e.fail(fmt::format("a namespace cannot have the member {}", shown(name)));
    e.charge(1);
    e.charge_lookup(members.size());
    for (auto& member : members)
      if (member.first == name) {
        member.second = value;
        return;
      }
    members.emplace_back(name, value);
  };
  if (const Value* from = arguments.get(0, {})) {
    if (from->dict() == nullptr) e.fail(fmt::format("namespace() needs a map, not a {}", type_name(*from)));
    for (const auto& [key, value] : from->dict()->items)
      if (key.text() != nullptr) set(key.text()->bytes(), value);
  }
  for (const auto& [name, value] : arguments.all_named()) {
    e.charge_lookup(arguments.all_named().size());
    arguments.named(name);
    set(name, value);
  }
  return e.make_space(std::move(members));
}

Value raise(Evaluator& e, CallArguments& arguments) {
  const Value* message = arguments.get(0, "message");
  if (message == nullptr) e.fail("raise_exception() needs a message");
  e.fail(fmt::format("the template refuses: {}", shown(e.str(*message).bytes(), 300)));
}

Value strftime_now(Evaluator& e, CallArguments& arguments) {
  const Value* format = arguments.get(0, "format");
  if (format == nullptr) e.fail("strftime_now() needs a format");
  const std::string& text = e.text(*format, "strftime_now()").bytes();
  if (text.size() > 200) e.fail("strftime_now(): the format is longer than 200 bytes");
  if (text.empty()) return e.make(std::string());
  e.charge(64);
  const std::time_t now = static_cast<std::time_t>(e.now());
  std::tm local = {};
  localtime_r(&now, &local);
  char out[4096];
  return e.make(std::string(out, std::strftime(out, sizeof out, text.c_str(), &local)));
}

struct NamedGlobal {
  std::string_view name;
  Value (*run)(Evaluator&, CallArguments&);
};

constexpr NamedGlobal kGlobals[] = {{"dict", make_dict},
                                    {"namespace", make_space},
                                    {"raise_exception", raise},
                                    {"range", range},
                                    {"strftime_now", strftime_now}};

}  // namespace

bool is_global(std::string_view name) {
  return std::any_of(std::begin(kGlobals), std::end(kGlobals),
                     [&](const NamedGlobal& g) { return g.name == name; });
}

bool is_refused_global(std::string_view name) {
  return name == "lipsum" || name == "cycler" || name == "joiner" || name == "super" || name == "self";
}

Value call_global(Evaluator& e, std::string_view name, CallArguments& arguments) {
  for (const NamedGlobal& global : kGlobals)
    if (global.name == name) return global.run(e, arguments);
  e.fail(fmt::format("the function {} is not supported", name));
}

}  // namespace pleat::data::jinja
