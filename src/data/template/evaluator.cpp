// Statements.
#include "data/template/evaluator.h"

#include <algorithm>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data::jinja {

// What a value takes beside what it holds: the parts of the object and its share of the heap.
constexpr size_t kObjectBytes = 96;
constexpr size_t kPieceBytes = size_t{64} << 10;

Evaluator::Evaluator(const std::string& name, const TemplateLimits& limits, int64_t now, int64_t spent)
    : name_(name),
      limits_(limits),
      now_(now),
      spent_(spent),
      globals_(std::make_shared<Scope>()),
      scope_(globals_) {}

Evaluator::~Evaluator() {
  for (const auto& space : spaces_) space->members.clear();
  for (const auto& scope : caught_) scope->variables.clear();
  globals_->variables.clear();
}

void Evaluator::fail(std::string_view what) const { base::fail("{}:{}: {}", name_, line_, what); }

void Evaluator::charge(int64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps) fail(fmt::format("the template takes more than {} steps", limits_.steps));
  if (spent_ + steps_ > limits_.conversation_steps)
    fail(fmt::format("the template takes more than {} steps for the answers of one conversation",
                     limits_.conversation_steps));
}

void Evaluator::too_deep() {
  --level_;
  fail(fmt::format("calls and statements nest deeper than {} levels", limits_.running_nesting));
}

void Evaluator::too_much_text() const {
  fail(fmt::format("the template puts together more than {} bytes of text", limits_.text_bytes));
}

void Evaluator::too_much_held() const {
  fail(fmt::format("the template holds values of more than {} bytes at one time", limits_.value_bytes));
}

void Evaluator::hold(Holding& holding, size_t bytes) {
  holding.add(held_, bytes);
  if (held_ > limits_.value_bytes) too_much_held();
}

void Evaluator::check_room(const TracedText& growing) const {
  if (growing.size() > limits_.text_bytes) too_much_text();
  if (growing.memory() > limits_.value_bytes) too_much_held();
}

void Evaluator::check_room(size_t num_items) const {
  if (num_items > limits_.value_bytes / sizeof(Value)) too_much_held();
}

size_t Evaluator::end_of_piece(std::string_view text, size_t begin, size_t end) {
  if (end - begin <= kPieceBytes) return end;
  return previous_character(text, begin + kPieceBytes);
}

Value Evaluator::make(TracedText text) {
  text_bytes_ += text.memory();
  if (text_bytes_ > limits_.text_bytes) too_much_text();
  charge(1);
  charge_copy(text.memory());
  auto held = std::make_shared<HeldText>(std::move(text));
  hold(held->held, kObjectBytes + held->memory());
  return Text(std::move(held));
}

Value Evaluator::make_list(std::vector<Value> items, ListKind kind) {
  charge(1 + static_cast<int64_t>(items.size()));
  auto list = std::make_shared<List>();
  for (const Value& item : items) list->depth = std::max(list->depth, depth_of(item) + 1);
  if (list->depth > limits_.value_nesting)
    fail(fmt::format("lists and maps nest deeper than {} levels", limits_.value_nesting));
  hold(list->held, kObjectBytes + items.size() * sizeof(Value));
  list->hashable = kind == ListKind::Tuple && std::all_of(items.begin(), items.end(), is_hashable);
  list->items = std::move(items);
  list->kind = kind;
  return list;
}

Value Evaluator::make_dict(std::vector<std::pair<Value, Value>> items, int32_t message) {
  charge(1 + static_cast<int64_t>(items.size()));
  auto dict = std::make_shared<Dict>();
  for (const auto& item : items)
    dict->depth = std::max(dict->depth, std::max(depth_of(item.first), depth_of(item.second)) + 1);
  if (dict->depth > limits_.value_nesting)
    fail(fmt::format("lists and maps nest deeper than {} levels", limits_.value_nesting));
  hold(dict->held, kObjectBytes + items.size() * 2 * sizeof(Value));
  dict->items = std::move(items);
  dict->message = message;
  return dict;
}

Value Evaluator::make_space(std::vector<std::pair<std::string, Value>> members) {
  charge(1 + static_cast<int64_t>(members.size()));
  auto space = std::make_shared<Space>();
  hold(space->held, kObjectBytes * (1 + members.size()));
  space->members = std::move(members);
  spaces_.push_back(space);
  return space;
}

Value Evaluator::make_undefined(std::string why) {
  auto undefined = std::make_shared<Undefined>();
  hold(undefined->held, kObjectBytes + why.size());
  undefined->why = std::move(why);
  return std::shared_ptr<const Undefined>(std::move(undefined));
}

Value Evaluator::method(const Value& self, const std::string& name) {
  auto function = std::make_shared<Function>();
  hold(function->held, 2 * kObjectBytes);
  function->kind = Function::Kind::Method;
  function->name = name;
  function->self = self;
  return function;
}

std::shared_ptr<Scope> Evaluator::new_scope(std::shared_ptr<Scope> parent) {
  auto scope = std::make_shared<Scope>();
  hold(scope->held, kObjectBytes);
  scope->parent = std::move(parent);
  return scope;
}

void Evaluator::set_in(Scope& scope, const std::string& name, Value value) {
  charge_lookup(scope.variables.size());
  for (auto& variable : scope.variables)
    if (variable.first == name) {
      variable.second = std::move(value);
      return;
    }
  hold(scope.held, sizeof scope.variables[0] + name.size());
  scope.variables.emplace_back(name, std::move(value));
}

const Value* Evaluator::lookup(const std::string& name) {
  size_t looked_at = 0;
  const Value* found = nullptr;
  for (const Scope* scope = scope_.get(); scope != nullptr && found == nullptr; scope = scope->parent.get()) {
    for (const auto& variable : scope->variables) {
      ++looked_at;
      if (variable.first != name) continue;
      found = &variable.second;
      break;
    }
    ++looked_at;
  }
  charge_lookup(looked_at);
  return found;
}

TracedText Evaluator::run(const ParsedTemplate& parsed) {
  TracedText out;
  out_ = &out;
  run(parsed.body);
  return out;
}

void Evaluator::write(const TracedText& text) {
  text_bytes_ += text.memory();
  if (text_bytes_ > limits_.text_bytes) too_much_text();
  charge_copy(text.memory());
  text.for_each_run([&](size_t begin, size_t end, TextMark mark) {
    if (mark.turn == TextMark::kNoTurn) mark.turn = turn_;
    out_->append(std::string_view(text.bytes()).substr(begin, end - begin), mark);
  });
}

TracedText Evaluator::captured(const Body& body) {
  TracedText text;
  TracedText* const out = std::exchange(out_, &text);
  const std::shared_ptr<Scope> outer = scope_;
  scope_ = new_scope(outer);
  run(body);
  scope_ = outer;
  out_ = out;
  return text;
}

Evaluator::Flow Evaluator::run(const Body& body) {
  const Level level(*this);
  for (const Statement& s : body)
    if (const Flow flow = run(s); flow != Flow::Next) return flow;
  return Flow::Next;
}

Evaluator::Flow Evaluator::run(const Statement& s) {
  line_ = s.line;
  charge(1);
  switch (s.kind) {
    case StatementKind::Text:
      write(*s.text);
      break;
    case StatementKind::Print: {
      const Value value = evaluate(*s.expression);
      line_ = s.line;
      if (const TracedText* text = value.text())
        write(*text);
      else
        write(str(value));
      break;
    }
    case StatementKind::If:
      for (const auto& [condition, body] : s.branches)
        if (truth(evaluate(*condition))) return run(body);
      return run(s.otherwise);
    case StatementKind::For:
      return run_for(s);
    case StatementKind::Set:
      assign(s.target, evaluate(*s.expression));
      break;
    case StatementKind::SetBlock:
      assign(s.target, filtered(s.expression.get(), make(captured(s.body))));
      break;
    case StatementKind::Macro:
      set_in(*scope_, s.macro->name, macro_value(*s.macro));
      break;
    case StatementKind::Call:
      run_call(s);
      break;
    case StatementKind::Filter:
      write(text(filtered(s.expression.get(), make(captured(s.body))), "a filter block"));
      break;
    case StatementKind::With:
      run_with(s);
      break;
    case StatementKind::Generation:
      write(captured(s.body).remarked([&](TextMark mark) {
        mark.generated = true;
        return mark;
      }));
      break;
    case StatementKind::Break:
      return Flow::Break;
    case StatementKind::Continue:
      return Flow::Continue;
  }
  return Flow::Next;
}

Evaluator::Flow Evaluator::run_for(const Statement& s) {
  const std::shared_ptr<Scope> outer = scope_;
  const int32_t outer_turn = turn_;
  std::vector<Value> items = items_of(evaluate(*s.expression));
  if (s.condition) {
    std::vector<Value> kept;
    for (Value& item : items) {
      charge(1);
      scope_ = new_scope(outer);
      assign(s.target, item);
      if (truth(evaluate(*s.condition))) kept.push_back(std::move(item));
    }
    items = std::move(kept);
    scope_ = outer;
  }
  if (items.empty()) {
    scope_ = new_scope(outer);
    const Flow flow = run(s.otherwise);
    scope_ = outer;
    return flow;
  }
  auto loop = std::make_shared<Loop>();
  hold(loop->held, 2 * kObjectBytes);
  const size_t count = items.size();
  loop->sequence = make_list(std::move(items), ListKind::Tuple);
  loop->depth = depth_of(loop->sequence) + 1;
  const List& sequence = *loop->sequence.list();
  for (; loop->index < count; ++loop->index) {
    line_ = s.line;
    charge(1);
    scope_ = new_scope(outer);
    set_in(*scope_, "loop", loop);
    const Value& item = sequence.items[loop->index];
    assign(s.target, item);
    // The outermost loop over messages says whose turn it is.
    if (outer_turn == TextMark::kNoTurn && item.dict() != nullptr && item.dict()->message >= 0)
      turn_ = item.dict()->message;
    ++loops_;
    const Flow flow = run(s.body);
    --loops_;
    turn_ = outer_turn;
    if (flow == Flow::Break) break;
  }
  scope_ = outer;
  return Flow::Next;
}

void Evaluator::run_with(const Statement& s) {
  const std::shared_ptr<Scope> outer = scope_;
  const std::shared_ptr<Scope> inner = new_scope(outer);
  std::vector<Value> values;
  for (const auto& assignment : s.assignments) values.push_back(evaluate(*assignment.second));
  scope_ = inner;
  for (size_t i = 0; i < values.size(); ++i) assign(s.assignments[i].first, values[i]);
  run(s.body);
  scope_ = outer;
}

void Evaluator::run_call(const Statement& s) {
  const Value caller = macro_value(*s.macro);
  const Value result = evaluate_call(*s.expression, {{"caller", caller}});
  write(str(result));
}

Value Evaluator::macro_value(const MacroCode& macro) {
  auto function = std::make_shared<Function>();
  hold(function->held, 2 * kObjectBytes);
  function->kind = Function::Kind::Macro;
  function->name = macro.name;
  function->macro = &macro;
  function->scope = scope_;
  if (caught_.empty() || caught_.back() != scope_) caught_.push_back(scope_);
  return function;
}

void Evaluator::assign(const Target& target, const Value& value) {
  line_ = target.line;
  if (!target.parts.empty()) {
    const std::vector<Value> items = items_of(value);
    if (items.size() != target.parts.size())
      fail(fmt::format("{} values cannot be given to {} names", items.size(), target.parts.size()));
    for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
    return;
  }
  if (target.member.empty()) {
    // A loop over numbers takes its message by one of them: from there on it is that message's round.
    if (loops_ > 0 && turn_ == TextMark::kNoTurn && value.dict() != nullptr && value.dict()->message >= 0)
      turn_ = value.dict()->message;
    set_in(*scope_, target.name, value);
    return;
  }
  const Value* found = lookup(target.name);
  Space* space = found == nullptr ? nullptr : found->space();
  if (space == nullptr)
    fail(fmt::format("{} is no namespace; its members cannot be set", shown(target.name)));
  if (target.member[0] == '_')
    fail(fmt::format("a namespace cannot have the member {}", shown(target.member)));
  charge_lookup(space->members.size());
  for (auto& member : space->members)
    if (member.first == target.member) {
      member.second = value;
      return;
    }
  charge(1);
  hold(space->held, kObjectBytes + target.member.size());
  space->members.emplace_back(target.member, value);
}

Value Evaluator::filtered(const Expression* filters, Value text) {
  if (filters == nullptr) return text;
  CallArguments given;
  if (filters->parts[0]) text = filtered(filters->parts[0].get(), std::move(text));
  line_ = filters->line;
  given = arguments(filters->arguments);
  return filter(filters->name, text, given);
}

Value Evaluator::call_macro(const Function& function, CallArguments& arguments) {
  const Level level(*this);
  const MacroCode& macro = *function.macro;
  const std::shared_ptr<Scope> outer = scope_;
  const std::shared_ptr<Scope> inner = new_scope(function.scope);
  scope_ = inner;
  const int line = line_;
  charge_lookup((macro.parameters.size() + 1) * arguments.all_named().size());
  std::vector<const Parameter*> open;
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& p = macro.parameters[i];
    const Value* given = arguments.get(i, p.name);
    set_in(*inner, p.name,
           given != nullptr ? *given
                            : make_undefined(fmt::format("parameter '{}' was not provided", shown(p.name))));
    if (given == nullptr && p.otherwise) open.push_back(&p);
  }
  for (const Parameter* p : open) set_in(*inner, p->name, evaluate(*p->otherwise));
  line_ = line;
  if (const Value* caller = arguments.named("caller")) {
    if (!macro.uses_caller) fail(fmt::format("macro {} does not use its caller", shown(macro.name)));
    set_in(*inner, "caller", *caller);
  } else if (macro.uses_caller) {
    set_in(*inner, "caller", make_undefined("No caller defined"));
  }
  if (macro.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = macro.parameters.size(); i < arguments.positional().size(); ++i)
      rest.push_back(*arguments.get(i, {}));
    set_in(*inner, "varargs", make_list(std::move(rest), ListKind::Tuple));
  }
  if (macro.uses_kwargs) {
    std::vector<std::pair<Value, Value>> rest;
    for (const auto& entry : arguments.all_named()) {
      const auto& given = entry.first;
      const auto& value = entry.second;
      const bool known =
          given == "caller" || std::any_of(macro.parameters.begin(), macro.parameters.end(),
                                           [&](const Parameter& p) { return p.name == given; });
      if (known) continue;
      charge_lookup(macro.parameters.size() + arguments.all_named().size());
      arguments.named(given);
      rest.emplace_back(make(given), value);
    }
    set_in(*inner, "kwargs", make_dict(std::move(rest)));
  }
  if (!arguments.all_taken())
    fail(fmt::format("macro {} takes {} arguments, and not all of those given fit", shown(macro.name),
                     macro.parameters.size()));
  TracedText text;
  TracedText* const out = std::exchange(out_, &text);
  run(macro.body);
  out_ = out;
  scope_ = outer;
  line_ = line;
  return make(std::move(text));
}

}  // namespace pleat::data::jinja
