// Filters that work on what can be gone through.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "data/template/evaluator.h"
#include "data/template/python_text.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data::jinja {
namespace {

Value length_filter(Evaluator& e, const Value& value, CallArguments&) { return e.length_of(value); }

Value list_filter(Evaluator& e, const Value& value, CallArguments&) { return e.make_list(e.items_of(value)); }

Value join_filter(Evaluator& e, const Value& value, CallArguments& arguments) {
  const Value* between = arguments.get(0, "d");
  const Value* attribute = arguments.get(1, "attribute");
  TracedText separator;
  if (between != nullptr) separator = e.str(*between);
  TracedText out;
  bool first = true;
  for (const Value& item : e.items_of(value)) {
    if (!std::exchange(first, false)) out.append(separator);
    out.append(e.str(attribute == nullptr ? item : e.path(item, *attribute)));
    e.charge_copy(separator.memory());
    e.check_room(out);
  }
  return e.make(std::move(out));
}

Value first_filter(Evaluator& e, const Value& value, CallArguments&) {
  std::vector<Value> items = e.items_of(value);
  return items.empty() ? e.make_undefined("No first item, sequence was empty.") : items.front();
}

Value last_filter(Evaluator& e, const Value& value, CallArguments&) {
  if (value.list() != nullptr && value.list()->kind == ListKind::Generator)
    e.fail("the filter last needs a list; pass the generator through the filter list first");
  std::vector<Value> items = e.items_of(value);
  return items.empty() ? e.make_undefined("No last item, sequence was empty.") : items.back();
}

Value reverse_filter(Evaluator& e, const Value& value, CallArguments&) {
  std::vector<Value> items = e.items_of(value);
  std::reverse(items.begin(), items.end());
  if (value.text() == nullptr) return e.make_list(std::move(items), ListKind::Generator);
  TracedText out;
  for (const Value& item : items) out.append(*item.text());
  return e.make(std::move(out));
}

void take_named(Evaluator& e, CallArguments& arguments) {
  for (const auto& named : arguments.all_named()) {
    e.charge_lookup(arguments.all_named().size());
    arguments.named(named.first);
  }
}

Value map_filter(Evaluator& e, const Value& value, CallArguments& arguments) {
  std::vector<Value> out;
  const Value* attribute = arguments.positional().empty() ? arguments.named("attribute") : nullptr;
  const Value* otherwise = attribute != nullptr ? arguments.named("default") : nullptr;
  const Value* name = attribute == nullptr ? arguments.get(0, {}) : nullptr;
  if (attribute == nullptr && name == nullptr)
    e.fail("the filter map needs the name of a filter or attribute=");
  const std::vector<Value> items = truth(value) ? e.items_of(value) : std::vector<Value>{};
  for (const Value& item : items) {
    if (attribute != nullptr) {
      Value found = e.path(item, *attribute);
      out.push_back(found.is_undefined() && otherwise != nullptr ? *otherwise : std::move(found));
      continue;
    }
    e.charge(1 + static_cast<int64_t>(arguments.positional().size() + arguments.all_named().size()));
    CallArguments rest = arguments.without(1);
    out.push_back(e.filter(e.text(*name, "map").bytes(), item, rest));
  }
  if (attribute == nullptr) {  // the rest was checked by the filter itself
    for (size_t i = 1; i < arguments.positional().size(); ++i) arguments.get(i, {});
    take_named(e, arguments);
  }
  return e.make_list(std::move(out), ListKind::Generator);
}

template <bool kAttribute, bool kWanted>
Value select_filter(Evaluator& e, const Value& value, CallArguments& arguments) {
  const size_t off = kAttribute ? 1 : 0;
  const Value* attribute = kAttribute ? arguments.get(0, {}) : nullptr;
  if (kAttribute && attribute == nullptr) e.fail("the filters selectattr and rejectattr need an attribute");
  const Value* name = arguments.get(off, {});
  std::vector<Value> out;
  // Jinja goes through nothing where the value is false, whatever it is.
  const std::vector<Value> items = truth(value) ? e.items_of(value) : std::vector<Value>{};
  for (const Value& item : items) {
    const Value looked_at = kAttribute ? e.path(item, *attribute) : item;
    bool passes = false;
    if (name == nullptr) {
      passes = truth(looked_at);
    } else {
      e.charge(1 + static_cast<int64_t>(arguments.positional().size() + arguments.all_named().size()));
      CallArguments rest = arguments.without(off + 1);
      passes = e.test(e.text(*name, "select").bytes(), looked_at, rest);
    }
    if (passes == kWanted) out.push_back(item);
  }
  for (size_t i = off; i < arguments.positional().size(); ++i) arguments.get(i, {});
  take_named(e, arguments);
  return e.make_list(std::move(out), ListKind::Generator);
}

Value items_filter(Evaluator& e, const Value& value, CallArguments&) {
  std::vector<Value> out;
  if (value.is_undefined()) return e.make_list(std::move(out), ListKind::Generator);
  if (value.dict() == nullptr)
    e.fail(fmt::format("the filter items needs a map, not a {}", type_name(value)));
  for (const auto& [key, item] : value.dict()->items)
    out.push_back(e.make_list({key, item}, ListKind::Tuple));
  return e.make_list(std::move(out), ListKind::Generator);
}

// Sort keys ignore letter case unless told otherwise.
Value sort_key(Evaluator& e, const Value& value, bool case_sensitive) {
  if (case_sensitive || value.text() == nullptr) return value;
  e.charge_letters(value.text()->size());
  return e.make(lower(value.text()->bytes()));
}

struct Keyed {
  Value key, value;
};

std::vector<Value> sorted(Evaluator& e, std::vector<Keyed> items, bool reverse) {
  std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    if (e.equal(a.key, b.key)) return false;  // also of two that have no order
    return reverse ? e.less(b.key, a.key) : e.less(a.key, b.key);
  });
  std::vector<Value> out;
  for (Keyed& item : items) out.push_back(std::move(item.value));
  return out;
}

bool given_true(const Value* value) { return value != nullptr && truth(*value); }

Value dictsort(Evaluator& e, const Value& value, CallArguments& arguments) {
  const bool case_sensitive = given_true(arguments.get(0, "case_sensitive"));
  const Value* by = arguments.get(1, "by");
  const bool reverse = given_true(arguments.get(2, "reverse"));
  const std::string what = by == nullptr ? "key" : e.text(*by, "dictsort").bytes();
  if (what != "key" && what != "value") e.fail("the filter dictsort sorts by key or by value");
  if (value.dict() == nullptr)
    e.fail(fmt::format("the filter dictsort needs a map, not a {}", type_name(value)));
  std::vector<Keyed> items;
  for (const auto& [key, item] : value.dict()->items)
    items.push_back(
        {sort_key(e, what == "key" ? key : item, case_sensitive), e.make_list({key, item}, ListKind::Tuple)});
  return e.make_list(sorted(e, std::move(items), reverse));
}

Value sort_filter(Evaluator& e, const Value& value, CallArguments& arguments) {
  const bool reverse = given_true(arguments.get(0, "reverse"));
  const bool case_sensitive = given_true(arguments.get(1, "case_sensitive"));
  const Value* attribute = arguments.get(2, "attribute");
  if (attribute != nullptr && attribute->text() != nullptr &&
      attribute->text()->bytes().find(',') != std::string::npos)
    e.fail("the filter sort by several attributes is not supported");
  std::vector<Keyed> items;
  for (const Value& item : e.items_of(value))
    items.push_back(
        {sort_key(e, attribute == nullptr ? item : e.path(item, *attribute), case_sensitive), item});
  return e.make_list(sorted(e, std::move(items), reverse));
}

Value unique(Evaluator& e, const Value& value, CallArguments& arguments) {
  const bool case_sensitive = given_true(arguments.get(0, "case_sensitive"));
  const Value* attribute = arguments.get(1, "attribute");
  std::vector<Value> seen, out;
  for (const Value& item : e.items_of(value)) {
    Value key = sort_key(e, attribute == nullptr ? item : e.path(item, *attribute), case_sensitive);
    if (!is_hashable(key)) e.fail(fmt::format("the filter unique cannot compare a {}", type_name(key)));
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& v) { return e.equal(v, key); })) continue;
    seen.push_back(std::move(key));
    out.push_back(item);
  }
  return e.make_list(std::move(out), ListKind::Generator);
}

template <bool kLargest>
Value extreme(Evaluator& e, const Value& value, CallArguments& arguments) {
  const bool case_sensitive = given_true(arguments.get(0, "case_sensitive"));
  const Value* attribute = arguments.get(1, "attribute");
  const std::vector<Value> items = e.items_of(value);
  if (items.empty()) return e.make_undefined("No aggregated item, sequence was empty.");
  Value best, best_key;
  bool first = true;
  for (const Value& item : items) {
    Value key = sort_key(e, attribute == nullptr ? item : e.path(item, *attribute), case_sensitive);
    if (std::exchange(first, false) || (kLargest ? e.less(best_key, key) : e.less(key, best_key))) {
      best = item;
      best_key = std::move(key);
    }
  }
  return best;
}

Value sum_filter(Evaluator& e, const Value& value, CallArguments& arguments) {
  const Value* attribute = arguments.get(0, "attribute");
  const Value* start = arguments.get(1, "start");
  Value total = start == nullptr ? Value(int64_t{0}) : *start;
  for (const Value& item : e.items_of(value))
    total = e.add(total, attribute == nullptr ? item : e.path(item, *attribute));
  return total;
}

Value batch(Evaluator& e, const Value& value, CallArguments& arguments) {
  const Value* count = arguments.get(0, "linecount");
  const Value* fill = arguments.get(1, "fill_with");
  if (count == nullptr) e.fail("the filter batch needs a number");
  const int64_t size = e.integer(*count, "batch");
  if (size < 1) e.fail("the filter batch needs a number of at least 1");
  std::vector<Value> out, row;
  for (const Value& item : e.items_of(value)) {
    if (static_cast<int64_t>(row.size()) == size) out.push_back(e.make_list(std::exchange(row, {})));
    row.push_back(item);
  }
  while (!row.empty() && fill != nullptr && !fill->is_none() && static_cast<int64_t>(row.size()) < size) {
    e.charge(1);
    e.check_room(row.size());
    row.push_back(*fill);
  }
  if (!row.empty()) out.push_back(e.make_list(std::move(row)));
  return e.make_list(std::move(out), ListKind::Generator);
}

Value attr_filter(Evaluator& e, const Value& value, CallArguments& arguments) {
  const Value* name = arguments.get(0, "name");
  if (name == nullptr) e.fail("the filter attr needs a name");
  if (value.dict() != nullptr) {  // attributes only, no members
    const std::string wanted = e.str(*name).bytes();
    if (e.find(*value.dict(), std::string_view(wanted)) != nullptr && !is_method(wanted))
      return e.make_undefined(fmt::format("'dict object' has no attribute '{}'", shown(wanted)));
  }
  return e.attribute(value, e.str(*name).bytes());
}

struct NamedListFilter {
  std::string_view name;
  Filter run;
};

constexpr std::array kListFilters = {
    NamedListFilter{"attr", attr_filter},
    NamedListFilter{"batch", batch},
    NamedListFilter{"count", length_filter},
    NamedListFilter{"dictsort", dictsort},
    NamedListFilter{"first", first_filter},
    NamedListFilter{"items", items_filter},
    NamedListFilter{"join", join_filter},
    NamedListFilter{"last", last_filter},
    NamedListFilter{"length", length_filter},
    NamedListFilter{"list", list_filter},
    NamedListFilter{"map", map_filter},
    NamedListFilter{"max", extreme<true>},
    NamedListFilter{"min", extreme<false>},
    NamedListFilter{"reject", select_filter<false, false>},
    NamedListFilter{"rejectattr", select_filter<true, false>},
    NamedListFilter{"reverse", reverse_filter},
    NamedListFilter{"select", select_filter<false, true>},
    NamedListFilter{"selectattr", select_filter<true, true>},
    NamedListFilter{"sort", sort_filter},
    NamedListFilter{"sum", sum_filter},
    NamedListFilter{"unique", unique},
};

}  // namespace

Filter find_list_filter(std::string_view name) {
  const auto found = std::find_if(kListFilters.begin(), kListFilters.end(),
                                  [&](const NamedListFilter& f) { return f.name == name; });
  return found == kListFilters.end() ? nullptr : found->run;
}

}  // namespace pleat::data::jinja
