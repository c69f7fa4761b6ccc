// Equality, order and membership, as Python has them. A list may hold the same list many times over, so every
// pair that is compared costs a step, and texts cost their bytes.
#include <algorithm>

#include "base/error.h"
#include "data/template/evaluator.h"
#include "data/template/python_text.h"

namespace pleat::data::jinja {

// Lists and ranges equal their own kind only; a generator equals nothing but itself.
bool Evaluator::equal_lists(const List& a, const List& b) {
  if (&a == &b) return true;
  if (a.kind != b.kind || a.kind == ListKind::Generator || a.kind == ListKind::Values) return false;
  return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(),
                    [&](const Value& one, const Value& other) { return equal(one, other); });
}

bool Evaluator::equal_dicts(const Dict& a, const Dict& b) {
  if (&a == &b) return true;
  if (a.items.size() != b.items.size()) return false;
  return std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
    const Value* other = find(b, item.first);
    return other != nullptr && equal(item.second, *other);
  });
}

bool Evaluator::equal(const Value& a, const Value& b) {
  charge(1);
  int64_t i = 0, j = 0;
  if (a.as_integer(i) && b.as_integer(j)) return i == j;
  double x = 0, y = 0;
  if (a.as_real(x)) return b.as_real(y) && x == y;
  if (const TracedText* text = a.text()) {
    if (b.text() == nullptr || text->size() != b.text()->size()) return false;
    charge_copy(text->size());
    return text->bytes() == b.text()->bytes();
  }
  if (a.is_none()) return b.is_none();
  if (a.is_undefined()) return b.is_undefined();
  if (const List* list = a.list()) return b.list() != nullptr && equal_lists(*list, *b.list());
  if (const Dict* dict = a.dict()) return b.dict() != nullptr && equal_dicts(*dict, *b.dict());
  if (a.space()) return a.space() == b.space();
  if (a.function()) return a.function() == b.function();
  return a.loop() == b.loop();
}

const Value* Evaluator::find(const Dict& dict, const Value& key) {
  if (const TracedText* text = key.text()) return find(dict, std::string_view(text->bytes()));
  for (const auto& item : dict.items)
    if (equal(item.first, key)) return &item.second;
  return nullptr;
}

const Value* Evaluator::find(const Dict& dict, std::string_view key) {
  charge_lookup(dict.items.size());
  for (const auto& item : dict.items) {
    const TracedText* text = item.first.text();
    if (text == nullptr || text->size() != key.size()) continue;
    charge_copy(key.size());
    if (text->bytes() == key) return &item.second;
  }
  return nullptr;
}

bool Evaluator::less(const Value& a, const Value& b) {
  charge(1);
  check_used(a);
  check_used(b);
  int64_t i = 0, j = 0;
  if (a.as_integer(i) && b.as_integer(j)) return i < j;
  double x = 0, y = 0;
  if (a.as_real(x) && b.as_real(y)) return x < y;
  // Order of bytes is order of code points in UTF-8.
  if (a.text() != nullptr && b.text() != nullptr) {
    charge_copy(std::min(a.text()->size(), b.text()->size()));
    return a.text()->bytes() < b.text()->bytes();
  }
  const List *left = a.list(), *right = b.list();
  if (left != nullptr && right != nullptr && left->kind == right->kind &&
      (left->kind == ListKind::List || left->kind == ListKind::Tuple)) {
    for (size_t at = 0; at < left->items.size() && at < right->items.size(); ++at)
      if (!equal(left->items[at], right->items[at])) return less(left->items[at], right->items[at]);
    return left->items.size() < right->items.size();
  }
  fail(fmt::format("a {} and a {} have no order", type_name(a), type_name(b)));
}

bool Evaluator::contains(const Value& container, const Value& item) {
  if (container.is_undefined()) return false;
  if (const TracedText* text = container.text()) {
    const std::string& wanted = this->text(item, "in a string").bytes();
    charge_scan(text->size() + wanted.size());
    return find_text(text->bytes(), wanted) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) {
    if (!is_hashable(item)) fail(fmt::format("a {} cannot be a key", type_name(item)));
    return find(*dict, item) != nullptr;
  }
  if (container.list() == nullptr)
    fail(fmt::format("\"in\" needs something to look in, not a {}", type_name(container)));
  const std::vector<Value> items = items_of(container);
  return std::any_of(items.begin(), items.end(), [&](const Value& v) { return equal(v, item); });
}

bool Evaluator::compare(std::string_view op, const Value& a, const Value& b) {
  if (op == "==") return equal(a, b);
  if (op == "!=") return !equal(a, b);
  if (op == "in") return contains(b, a);
  if (op == "not in") return !contains(b, a);
  if (op == "<") return less(a, b);
  if (op == ">") return less(b, a);
  // Not the opposite of the other order: NaN.
  return op == "<=" ? less(a, b) || equal(a, b) : less(b, a) || equal(a, b);
}

Value Evaluator::compare(const Expression& e) {
  Value left = evaluate(*e.parts[0]);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    Value right = evaluate(*e.parts[i + 1]);
    line_ = e.line;
    if (!compare(e.operators[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

}  // namespace pleat::data::jinja
