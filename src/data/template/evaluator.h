// Runs a parsed template once.
//
// Whatever takes time costs steps in proportion: a statement, an expression, a round of a loop, an item that
// is looked at, the bytes that are read. Every text that is put together costs its bytes, and every value
// counts for as long as it is held. All three are bounded (limits.h). Errors name the template and the line.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/template/library.h"
#include "data/template/limits.h"
#include "data/template/runtime.h"
#include "data/template/syntax.h"

namespace pleat::data::jinja {

class Evaluator {
 public:
  // `spent`: steps that earlier renderings of the same conversation took.
  Evaluator(const std::string& name, const TemplateLimits& limits, int64_t now, int64_t spent);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;

  void set(const std::string& name, Value value) { set_in(*globals_, name, std::move(value)); }
  TracedText run(const ParsedTemplate& parsed);

  int64_t steps() const { return steps_; }

  // For the library:
  [[noreturn]] void fail(std::string_view what) const;
  void charge(int64_t steps);
  // Of bytes that are copied or compared, looked through, or mapped one character at a time.
  void charge_copy(size_t bytes) { charge(static_cast<int64_t>(bytes / 64)); }
  void charge_scan(size_t bytes) { charge(static_cast<int64_t>(bytes / 16)); }
  void charge_letters(size_t bytes) { charge(static_cast<int64_t>(bytes / 8)); }
  // Of looking through `n` names or keys.
  void charge_lookup(size_t n) { charge(static_cast<int64_t>(n / 8)); }
  // Fails where a text, or so many items, could not be held any more.
  void check_room(const TracedText& growing) const;
  void check_room(size_t num_items) const;
  // Appends `text`, each piece through convert(bytes). Pieces end with characters, but anywhere.
  template <class Convert>
  void append_converted(TracedText& out, const TracedText& text, const Convert& convert) {
    charge_scan(text.size());
    text.for_each_run([&](size_t begin, size_t end, TextMark mark) {
      while (begin < end) {
        const size_t cut = end_of_piece(text.bytes(), begin, end);
        out.append(convert(std::string_view(text.bytes()).substr(begin, cut - begin)), mark);
        check_room(out);
        begin = cut;
      }
    });
  }
  int64_t now() const { return now_; }
  const TemplateLimits& limits() const { return limits_; }

  Value make(TracedText text);
  Value make(std::string text) { return make(TracedText(std::move(text))); }
  Value make_list(std::vector<Value> items, ListKind kind = ListKind::List);
  Value make_dict(std::vector<std::pair<Value, Value>> items, int32_t message = -1);
  Value make_space(std::vector<std::pair<std::string, Value>> members);
  Value make_undefined(std::string why);

  // Python's str() and repr().
  TracedText str(const Value& value);
  TracedText repr(const Value& value);
  // The items a loop would go through; fails when it could not.
  std::vector<Value> items_of(const Value& value);
  int64_t length_of(const Value& value);
  // Python's ==. Values of different kinds differ; numbers compare as numbers.
  bool equal(const Value& a, const Value& b);
  bool less(const Value& a, const Value& b);
  // The value of a key, or null.
  const Value* find(const Dict& dict, const Value& key);
  const Value* find(const Dict& dict, std::string_view key);
  bool contains(const Value& container, const Value& item);
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& key);
  // "a.b.0", as filters name attributes.
  Value path(const Value& object, const Value& path);
  Value call(const Value& callee, CallArguments& arguments);
  Value filter(std::string_view name, const Value& value, CallArguments& arguments);
  bool test(std::string_view name, const Value& value, CallArguments& arguments);
  Value add(const Value& a, const Value& b);

  // An argument that must be an integer, or text.
  int64_t integer(const Value& value, std::string_view what) const;
  const TracedText& text(const Value& value, std::string_view what) const;

 private:
  enum class Flow { Next, Break, Continue };
  // Counts a level of nesting while it lives.
  class Level {
   public:
    explicit Level(Evaluator& e) : e_(e) {
      if (++e_.level_ > e_.limits_.running_nesting) e_.too_deep();
    }
    ~Level() { --e_.level_; }
    Level(const Level&) = delete;

   private:
    Evaluator& e_;
  };
  [[noreturn]] void too_deep();
  [[noreturn]] void too_much_text() const;
  [[noreturn]] void too_much_held() const;
  void hold(Holding& holding, size_t bytes);
  static size_t end_of_piece(std::string_view text, size_t begin, size_t end);
  std::shared_ptr<Scope> new_scope(std::shared_ptr<Scope> parent);
  void set_in(Scope& scope, const std::string& name, Value value);
  const Value* lookup(const std::string& name);
  Value method(const Value& self, const std::string& name);
  bool equal_lists(const List& a, const List& b);
  bool equal_dicts(const Dict& a, const Dict& b);

  Flow run(const Body& body);
  Flow run(const Statement& s);
  Flow run_for(const Statement& s);
  void run_with(const Statement& s);
  void run_call(const Statement& s);
  // The text a body writes, in a scope of its own.
  TracedText captured(const Body& body);
  void write(const TracedText& text);
  void assign(const Target& target, const Value& value);
  Value filtered(const Expression* filters, Value text);
  Value call_macro(const Function& function, CallArguments& arguments);
  Value call_method(const Function& function, CallArguments& arguments);
  Value macro_value(const MacroCode& macro);

  Value evaluate(const Expression& e);
  Value evaluate_call(const Expression& e, std::vector<std::pair<std::string, Value>> further);
  Value name(const Expression& e);
  Value dict(const Expression& e);
  Value slice(const Expression& e);
  Value compare(const Expression& e);
  bool compare(std::string_view op, const Value& a, const Value& b);
  Value arithmetic(std::string_view op, const Value& a, const Value& b);
  Value repeat(const Value& sequence, int64_t times);
  CallArguments arguments(const Arguments& given);
  void repr_to(TracedText& out, const Value& value);
  void check_used(const Value& value) const;

  const std::string& name_;
  const TemplateLimits& limits_;
  int64_t now_;
  int line_ = 1;
  int level_ = 0;
  int64_t steps_ = 0, spent_;
  size_t text_bytes_ = 0;
  size_t held_ = 0;  // outlives every value
  int32_t turn_ = TextMark::kNoTurn;
  int loops_ = 0;  // being run
  TracedText* out_ = nullptr;
  std::shared_ptr<Scope> globals_, scope_;
  // What could refer to itself: emptied at the end.
  std::vector<std::shared_ptr<Space>> spaces_;
  std::vector<std::shared_ptr<Scope>> caught_;
};

}  // namespace pleat::data::jinja
