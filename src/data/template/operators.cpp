// Arithmetic, str() and repr(), and walking through values, as Python has them.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "data/template/evaluator.h"
#include "data/template/python_text.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data::jinja {
namespace {

int64_t floor_divided(int64_t a, int64_t b) {
  const int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

double floor_modulo(double a, double b) {
  const double m = std::fmod(a, b);
  return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}

}  // namespace

int64_t Evaluator::integer(const Value& value, std::string_view what) const {
  int64_t out = 0;
  if (const Undefined* undefined = value.undefined()) fail(undefined->why);
  if (!value.as_integer(out)) fail(fmt::format("{} needs an integer, not a {}", what, type_name(value)));
  return out;
}

const TracedText& Evaluator::text(const Value& value, std::string_view what) const {
  if (const Undefined* undefined = value.undefined()) fail(undefined->why);
  if (value.text() == nullptr) fail(fmt::format("{} needs a string, not a {}", what, type_name(value)));
  return *value.text();
}

TracedText Evaluator::str(const Value& value) {
  if (const TracedText* text = value.text()) {
    charge_copy(text->memory());
    return *text;
  }
  if (value.is_undefined()) return {};
  return repr(value);
}

TracedText Evaluator::repr(const Value& value) {
  TracedText out;
  repr_to(out, value);
  return out;
}

void Evaluator::repr_to(TracedText& out, const Value& value) {
  charge(1);
  check_room(out);
  if (value.is_none()) return out.append("None");
  if (value.is_undefined()) return out.append("Undefined");
  if (const bool* b = value.boolean()) return out.append(*b ? "True" : "False");
  if (const int64_t* i = value.integer()) return out.append(std::to_string(*i));
  if (const double* d = value.real()) return out.append(jinja::repr(*d));
  if (const TracedText* text = value.text()) {
    charge_scan(text->size());
    const char quote = repr_quote(text->bytes());
    out.append(std::string_view(&quote, 1));
    append_converted(out, *text, [&](std::string_view piece) { return repr_body(piece, quote); });
    return out.append(std::string_view(&quote, 1));
  }
  if (const Dict* dict = value.dict()) {
    out.append("{");
    bool first = true;
    for (const auto& [key, item] : dict->items) {
      if (!std::exchange(first, false)) out.append(", ");
      repr_to(out, key);
      out.append(": ");
      repr_to(out, item);
    }
    return out.append("}");
  }
  if (const List* list = value.list()) {
    if (list->kind == ListKind::Generator)
      fail("a generator has no text; pass it through the filter list first");
    if (list->kind == ListKind::Range) fail("a range has no text; pass it through the filter list first");
    const bool tuple = list->kind == ListKind::Tuple, plain = list->kind == ListKind::List;
    if (!tuple && !plain) (out.append(type_name(value)), out.append("("));
    out.append(tuple ? "(" : "[");
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) out.append(", ");
      repr_to(out, list->items[i]);
    }
    if (tuple && list->items.size() == 1) out.append(",");
    out.append(tuple ? ")" : "]");
    if (!tuple && !plain) out.append(")");
    return;
  }
  fail(fmt::format("a {} has no text", type_name(value)));
}

std::vector<Value> Evaluator::items_of(const Value& value) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (List* list = value.list()) {
    charge(static_cast<int64_t>(list->items.size()));
    if (list->kind != ListKind::Generator) return list->items;
    if (std::exchange(list->used, true)) return items;
    return list->items;
  }
  if (const Dict* dict = value.dict()) {
    charge(static_cast<int64_t>(dict->items.size()));
    for (const auto& item : dict->items) items.push_back(item.first);
    return items;
  }
  if (const TracedText* text = value.text()) {
    for (size_t at = 0; at < text->size();) {
      const size_t begin = at;
      next_code_point(text->bytes(), at);
      items.push_back(make(text->slice(begin, at)));
    }
    return items;
  }
  fail(fmt::format("a {} cannot be gone through", type_name(value)));
}

int64_t Evaluator::length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const TracedText* text = value.text()) {
    charge_copy(text->size());
    return static_cast<int64_t>(jinja::length_of(text->bytes()));
  }
  if (const Dict* dict = value.dict()) return static_cast<int64_t>(dict->items.size());
  if (const Loop* loop = value.loop()) return static_cast<int64_t>(loop->sequence.list()->items.size());
  const List* list = value.list();
  if (list == nullptr || list->kind == ListKind::Generator)
    fail(fmt::format("a {} has no length", type_name(value)));
  return static_cast<int64_t>(list->items.size());
}

Value Evaluator::repeat(const Value& sequence, int64_t times) {
  if (const TracedText* text = sequence.text()) {
    TracedText out;
    if (times > 0 && text->size() > limits_.text_bytes / static_cast<size_t>(times)) too_much_text();
    for (int64_t i = 0; i < times && !text->empty(); ++i) {
      charge(1);
      charge_copy(text->memory());
      out.append(*text);
      check_room(out);
    }
    return make(std::move(out));
  }
  const List& list = *sequence.list();
  std::vector<Value> items;
  for (int64_t i = 0; i < times && !list.items.empty(); ++i) {
    charge(static_cast<int64_t>(list.items.size()));
    check_room(items.size() + list.items.size());
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return make_list(std::move(items), list.kind);
}

Value Evaluator::add(const Value& a, const Value& b) { return arithmetic("+", a, b); }

Value Evaluator::arithmetic(std::string_view op, const Value& a, const Value& b) {
  check_used(a);
  if (op == "%" && a.text() != nullptr) return format_percent(*this, *a.text(), b);
  check_used(b);
  const auto overflow = [&]() { fail("an integer is too large"); };
  int64_t i = 0, j = 0;
  double x = 0, y = 0;
  if (a.as_integer(i) && b.as_integer(j)) {
    int64_t out = 0;
    if (op == "+") {
      if (__builtin_add_overflow(i, j, &out)) overflow();
      return out;
    }
    if (op == "-") {
      if (__builtin_sub_overflow(i, j, &out)) overflow();
      return out;
    }
    if (op == "*") {
      if (__builtin_mul_overflow(i, j, &out)) overflow();
      return out;
    }
    if (op == "**" && j >= 0) {
      out = 1;
      for (int64_t n = 0; n < j && !(i == 0 || i == 1); ++n) {
        if (i == -1) {
          out = j % 2 == 0 ? 1 : -1;
          break;
        }
        if (__builtin_mul_overflow(out, i, &out)) overflow();
      }
      return i == 0 && j > 0 ? int64_t{0} : out;
    }
    if (op != "**" && j == 0) fail("a number is divided by zero");
    if (op == "//" || op == "%") {
      if (j == -1) {  // the least integer has no opposite
        if (op == "%") return int64_t{0};
        if (__builtin_sub_overflow(int64_t{0}, i, &out)) overflow();
        return out;
      }
      const int64_t q = floor_divided(i, j);
      return op == "//" ? q : i - q * j;
    }
  }
  if (a.as_real(x) && b.as_real(y)) {
    if (op == "+") return x + y;
    if (op == "-") return x - y;
    if (op == "*") return x * y;
    if (op == "**") {
      if (x == 0 && y < 0) fail("zero cannot be raised to a negative power");
      if (x < 0 && y != std::floor(y)) fail("complex numbers are not supported");
      const double power = std::pow(x, y);
      if (std::isinf(power) && !std::isinf(x) && !std::isinf(y)) fail("a number is too large");
      return power;
    }
    if (y == 0) fail("a number is divided by zero");
    if (op == "/") return x / y;
    if (op == "//") return std::floor((x - floor_modulo(x, y)) / y);
    return floor_modulo(x, y);
  }
  if (op == "+") {
    if (a.text() != nullptr && b.text() != nullptr) {
      TracedText out = *a.text();
      out.append(*b.text());
      return make(std::move(out));
    }
    const List *left = a.list(), *right = b.list();
    if (left != nullptr && right != nullptr && left->kind == right->kind &&
        (left->kind == ListKind::List || left->kind == ListKind::Tuple)) {
      std::vector<Value> items = left->items;
      items.insert(items.end(), right->items.begin(), right->items.end());
      return make_list(std::move(items), left->kind);
    }
  }
  if (op == "*") {
    const auto repeats = [](const Value& v) {
      return v.text() != nullptr ||
             (v.list() != nullptr && (v.list()->kind == ListKind::List || v.list()->kind == ListKind::Tuple));
    };
    if (repeats(a) && b.as_integer(j)) return repeat(a, j);
    if (repeats(b) && a.as_integer(i)) return repeat(b, i);
  }
  fail(fmt::format("\"{}\" cannot be applied to a {} and a {}", op, type_name(a), type_name(b)));
}

}  // namespace pleat::data::jinja
