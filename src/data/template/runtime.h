// Values while a template runs, with Python's meaning of truth, equality and order.
//
// Lists and maps never change once they are made (the sandbox Hugging Face runs templates in forbids it);
// only namespaces do. A value that nests deeper than the limits allow is never made, so walking one needs
// little stack. It may still hold the same list many times over, so that a walk visits far more items than
// there are: whoever walks one charges for each (Evaluator::equal, less, repr).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "data/template/traced_text.h"

namespace pleat::data::jinja {

struct MacroCode;
struct List;
struct Dict;
struct Space;
struct Function;
struct Loop;
class Value;

// Bytes counted in a total for as long as this lives.
class Holding {
 public:
  Holding() = default;
  Holding(const Holding&) = delete;
  Holding(Holding&& other) noexcept
      : total_(std::exchange(other.total_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  ~Holding() {
    if (total_ != nullptr) *total_ -= bytes_;
  }
  void add(size_t& total, size_t bytes) {
    total_ = &total;
    bytes_ += bytes;
    total += bytes;
  }

 private:
  size_t* total_ = nullptr;
  size_t bytes_ = 0;
};

struct Undefined {
  std::string why = {};  // what using it is answered with
  Holding held = {};
};
struct None {};

using Text = std::shared_ptr<const TracedText>;
struct HeldText : TracedText {
  explicit HeldText(TracedText text) : TracedText(std::move(text)) {}
  Holding held = {};
};
using Variant = std::variant<None, std::shared_ptr<const Undefined>, bool, int64_t, double, Text,
                             std::shared_ptr<List>, std::shared_ptr<Dict>, std::shared_ptr<Space>,
                             std::shared_ptr<Function>, std::shared_ptr<Loop>>;

class Value {
 public:
  Value() = default;  // None
  template <class T, class = std::enable_if_t<!std::is_same_v<std::decay_t<T>, Value>>>
  Value(T value) : held_(std::move(value)) {}

  bool is_none() const { return std::holds_alternative<None>(held_); }
  bool is_undefined() const { return std::holds_alternative<std::shared_ptr<const Undefined>>(held_); }
  const bool* boolean() const { return std::get_if<bool>(&held_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&held_); }
  const double* real() const { return std::get_if<double>(&held_); }
  const TracedText* text() const { return pointed<Text>(); }
  List* list() const { return pointed<std::shared_ptr<List>>(); }
  Dict* dict() const { return pointed<std::shared_ptr<Dict>>(); }
  Space* space() const { return pointed<std::shared_ptr<Space>>(); }
  Function* function() const { return pointed<std::shared_ptr<Function>>(); }
  Loop* loop() const { return pointed<std::shared_ptr<Loop>>(); }
  const Undefined* undefined() const { return pointed<std::shared_ptr<const Undefined>>(); }
  const Variant& held() const { return held_; }
  // As an integer where Python takes one: integers and booleans.
  bool as_integer(int64_t& out) const {
    if (const int64_t* i = integer()) return out = *i, true;
    if (const bool* b = boolean()) return out = *b ? 1 : 0, true;
    return false;
  }
  // As a number: also floats.
  bool as_real(double& out) const {
    int64_t i = 0;
    if (as_integer(i)) return out = static_cast<double>(i), true;
    if (const double* d = real()) return out = *d, true;
    return false;
  }

 private:
  template <class P>
  typename P::element_type* pointed() const {
    const P* p = std::get_if<P>(&held_);
    return p == nullptr ? nullptr : p->get();
  }
  Variant held_;
};

enum class ListKind { List, Tuple, Range, Items, Keys, Values, Generator };

struct List {
  std::vector<Value> items = {};
  ListKind kind = ListKind::List;
  int depth = 1;
  bool used = false;      // of a generator: it can be walked once
  bool hashable = false;  // of a tuple: all its items are
  Holding held = {};
};

struct Dict {
  std::vector<std::pair<Value, Value>> items = {};
  int depth = 1;
  int32_t message = -1;  // the message this is, of the conversation
  Holding held = {};
};

// What namespace() makes: the one thing whose members can be set.
struct Space {
  std::vector<std::pair<std::string, Value>> members = {};
  Holding held = {};
};

struct Scope {
  std::shared_ptr<Scope> parent = {};
  std::vector<std::pair<std::string, Value>> variables = {};
  Holding held = {};
};

struct Function {
  enum class Kind { Global, Method, Macro };
  Kind kind = Kind::Global;
  std::string name = {};
  Value self = {};                   // of a method
  const MacroCode* macro = nullptr;  // and where it was defined:
  std::shared_ptr<Scope> scope = {};
  Holding held = {};
};

struct Loop {
  Value sequence = {};  // a list
  size_t index = 0;
  Value last_changed = {};
  bool has_changed = false;
  int depth = 1;
  Holding held = {};
};

// The name of the type in Python's messages: "str", "dict".
const char* type_name(const Value& value);
int depth_of(const Value& value);
bool truth(const Value& value);
bool is_hashable(const Value& value);

}  // namespace pleat::data::jinja
