// What a template may call: filters, tests, methods of strings, maps and lists, and functions.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/template/runtime.h"

namespace pleat::data::jinja {

class Evaluator;

// The arguments of one call. Each of them must be asked for; done() refuses what nobody asked for.
class CallArguments {
 public:
  CallArguments() = default;
  CallArguments(std::vector<Value> positional, std::vector<std::pair<std::string, Value>> named)
      : positional_(std::move(positional)), named_(std::move(named)) {}

  // The argument at this place or of this name; null when it is not given. An empty name: by place only.
  const Value* get(size_t place, std::string_view name) {
    if (place < positional_.size()) {
      if (place >= taken_) taken_ = place + 1;
      return &positional_[place];
    }
    return named(name);
  }
  const Value* named(std::string_view name) {
    for (auto& [given, value] : named_)
      if (!name.empty() && given == name) {
        ++named_taken_;
        return &value;
      }
    return nullptr;
  }
  const std::vector<Value>& positional() const { return positional_; }
  const std::vector<std::pair<std::string, Value>>& all_named() const { return named_; }
  // All arguments but the first `n` places.
  CallArguments without(size_t n) const {
    return {std::vector<Value>(positional_.begin() + static_cast<ptrdiff_t>(n), positional_.end()), named_};
  }
  bool all_taken() const { return taken_ >= positional_.size() && named_taken_ >= named_.size(); }

 private:
  std::vector<Value> positional_;
  std::vector<std::pair<std::string, Value>> named_;
  size_t taken_ = 0, named_taken_ = 0;
};

using Filter = Value (*)(Evaluator&, const Value&, CallArguments&);
using Test = bool (*)(Evaluator&, const Value&, CallArguments&);

// Null where there is none of this name.
Filter find_filter(std::string_view name);
Filter find_text_filter(std::string_view name);
Filter find_list_filter(std::string_view name);
Test find_test(std::string_view name);

inline bool is_filter(std::string_view name) { return find_filter(name) != nullptr; }
// Those whose result Jinja joins with other text in its own way.
inline bool is_markup_filter(std::string_view name) {
  return name == "safe" || name == "e" || name == "escape";
}
inline bool is_test(std::string_view name) { return find_test(name) != nullptr; }
// Of any type. Those that would change a list or a map are methods too: calling one is refused when it
// happens, as in the sandbox.
bool is_method(std::string_view name);
bool is_text_method(std::string_view name);
// Functions of Jinja's that are left out.
bool is_refused_global(std::string_view name);
bool is_global(std::string_view name);

Value call_text_method(Evaluator& e, const Text& self, std::string_view name, CallArguments& arguments);
Value call_global(Evaluator& e, std::string_view name, CallArguments& arguments);

// text.replace(from, to, most); below 0: all of them.
TracedText replaced(Evaluator& e, const TracedText& text, const TracedText& from, const TracedText& to,
                    int64_t most);
// json.dumps with the options of Hugging Face's tojson filter.
Value to_json(Evaluator& e, const Value& value, CallArguments& arguments);
// text % values, and text.format(...).
Value format_percent(Evaluator& e, const TracedText& format, const Value& values);
Value format_braces(Evaluator& e, const TracedText& format, CallArguments& arguments);

}  // namespace pleat::data::jinja
