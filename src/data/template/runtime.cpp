#include "data/template/runtime.h"

#include <algorithm>

namespace pleat::data::jinja {
namespace {

// Lists and ranges equal their own kind only; a generator equals nothing but itself.
bool equal_lists(const List& a, const List& b) {
  if (&a == &b) return true;
  if (a.kind != b.kind || a.kind == ListKind::Generator || a.kind == ListKind::Values) return false;
  return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), equal);
}

bool equal_dicts(const Dict& a, const Dict& b) {
  if (&a == &b) return true;
  if (a.items.size() != b.items.size()) return false;
  return std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
    const Value* other = b.find(item.first);
    return other != nullptr && equal(item.second, *other);
  });
}

}  // namespace

const Value* Dict::find(const Value& key) const {
  if (const TracedText* text = key.text()) return find(std::string_view(text->bytes()));
  for (const auto& item : items)
    if (equal(item.first, key)) return &item.second;
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& item : items)
    if (const TracedText* text = item.first.text(); text != nullptr && text->bytes() == key)
      return &item.second;
  return nullptr;
}

void Scope::set(const std::string& name, Value value) {
  for (auto& variable : variables)
    if (variable.first == name) {
      variable.second = std::move(value);
      return;
    }
  variables.emplace_back(name, std::move(value));
}

const Value* Scope::find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get())
    for (const auto& variable : scope->variables)
      if (variable.first == name) return &variable.second;
  return nullptr;
}

const char* type_name(const Value& value) {
  if (value.is_none()) return "NoneType";
  if (value.is_undefined()) return "Undefined";
  if (value.boolean()) return "bool";
  if (value.integer()) return "int";
  if (value.real()) return "float";
  if (value.text()) return "str";
  if (value.dict()) return "dict";
  if (value.space()) return "Namespace";
  if (value.function()) return "function";
  if (value.loop()) return "LoopContext";
  switch (value.list()->kind) {
    case ListKind::List:
      return "list";
    case ListKind::Tuple:
      return "tuple";
    case ListKind::Range:
      return "range";
    case ListKind::Items:
      return "dict_items";
    case ListKind::Keys:
      return "dict_keys";
    case ListKind::Values:
      return "dict_values";
    case ListKind::Generator:
      return "generator";
  }
  return "";
}

int depth_of(const Value& value) {
  if (const List* list = value.list()) return list->depth;
  if (const Dict* dict = value.dict()) return dict->depth;
  if (const Loop* loop = value.loop()) return loop->depth;
  if (const Function* function = value.function()) return 1 + depth_of(function->self);
  return 0;
}

bool truth(const Value& value) {
  if (value.is_none() || value.is_undefined()) return false;
  double number = 0;
  if (value.as_real(number)) return number != 0;
  if (const TracedText* text = value.text()) return !text->empty();
  if (const List* list = value.list()) return list->kind == ListKind::Generator || !list->items.empty();
  if (const Dict* dict = value.dict()) return !dict->items.empty();
  return true;
}

bool equal(const Value& a, const Value& b) {
  int64_t i = 0, j = 0;
  if (a.as_integer(i) && b.as_integer(j)) return i == j;
  double x = 0, y = 0;
  if (a.as_real(x)) return b.as_real(y) && x == y;
  if (const TracedText* text = a.text()) return b.text() != nullptr && text->bytes() == b.text()->bytes();
  if (a.is_none()) return b.is_none();
  if (a.is_undefined()) return b.is_undefined();
  if (const List* list = a.list()) return b.list() != nullptr && equal_lists(*list, *b.list());
  if (const Dict* dict = a.dict()) return b.dict() != nullptr && equal_dicts(*dict, *b.dict());
  if (a.space()) return a.space() == b.space();
  if (a.function()) return a.function() == b.function();
  return a.loop() == b.loop();
}

bool is_hashable(const Value& value) {
  if (value.dict() != nullptr) return false;
  const List* list = value.list();
  if (list == nullptr) return true;
  if (list->kind == ListKind::Tuple) return std::all_of(list->items.begin(), list->items.end(), is_hashable);
  return list->kind == ListKind::Range || list->kind == ListKind::Generator;
}

}  // namespace pleat::data::jinja
