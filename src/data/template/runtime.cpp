#include "data/template/runtime.h"

namespace pleat::data::jinja {

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

bool is_hashable(const Value& value) {
  if (value.dict() != nullptr) return false;
  const List* list = value.list();
  if (list == nullptr) return true;
  if (list->kind == ListKind::Tuple) return list->hashable;
  return list->kind == ListKind::Range || list->kind == ListKind::Generator;
}

}  // namespace pleat::data::jinja
