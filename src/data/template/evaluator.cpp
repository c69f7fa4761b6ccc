// Statements.
#include "data/template/evaluator.h"

#include <algorithm>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data::jinja {

Evaluator::Evaluator(const std::string& name, const TemplateLimits& limits, int64_t now)
    : name_(name), limits_(limits), now_(now), globals_(std::make_shared<Scope>()), scope_(globals_) {}

Evaluator::~Evaluator() {
  for (const auto& space : spaces_) space->members.clear();
  for (const auto& scope : caught_) scope->variables.clear();
  globals_->variables.clear();
}

void Evaluator::fail(std::string_view what) const { base::fail("{}:{}: {}", name_, line_, what); }

void Evaluator::charge(int64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps) fail(fmt::format("the template takes more than {} steps", limits_.steps));
}

void Evaluator::too_deep() {
  --level_;
  fail(fmt::format("calls and statements nest deeper than {} levels", limits_.running_nesting));
}

Value Evaluator::make(TracedText text) {
  text_bytes_ += text.size();
  if (text_bytes_ > limits_.text_bytes)
    fail(fmt::format("the template puts together more than {} bytes of text", limits_.text_bytes));
  charge(1 + static_cast<int64_t>(text.size() / 64));
  return std::make_shared<const TracedText>(std::move(text));
}

Value Evaluator::make_list(std::vector<Value> items, ListKind kind) {
  charge(1 + static_cast<int64_t>(items.size()));
  auto list = std::make_shared<List>();
  for (const Value& item : items) list->depth = std::max(list->depth, depth_of(item) + 1);
  if (list->depth > limits_.value_nesting)
    fail(fmt::format("lists and maps nest deeper than {} levels", limits_.value_nesting));
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
  dict->items = std::move(items);
  dict->message = message;
  return dict;
}

Value Evaluator::make_space(std::vector<std::pair<std::string, Value>> members) {
  charge(1 + static_cast<int64_t>(members.size()));
  auto space = std::make_shared<Space>();
  space->members = std::move(members);
  spaces_.push_back(space);
  return space;
}

Value Evaluator::make_undefined(std::string why) const {
  return std::make_shared<const Undefined>(Undefined{std::move(why)});
}

TracedText Evaluator::run(const ParsedTemplate& parsed) {
  TracedText out;
  out_ = &out;
  run(parsed.body);
  return out;
}

void Evaluator::write(const TracedText& text) {
  text_bytes_ += text.size();
  if (text_bytes_ > limits_.text_bytes)
    fail(fmt::format("the template puts together more than {} bytes of text", limits_.text_bytes));
  text.for_each_run([&](size_t begin, size_t end, TextMark mark) {
    if (mark.turn == TextMark::kNoTurn) mark.turn = turn_;
    out_->append(std::string_view(text.bytes()).substr(begin, end - begin), mark);
  });
}

TracedText Evaluator::captured(const Body& body) {
  TracedText text;
  TracedText* const out = std::exchange(out_, &text);
  const std::shared_ptr<Scope> outer = scope_;
  scope_ = std::make_shared<Scope>();
  scope_->parent = outer;
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
      scope_->set(s.macro->name, macro_value(*s.macro));
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
      scope_ = std::make_shared<Scope>();
      scope_->parent = outer;
      assign(s.target, item);
      if (truth(evaluate(*s.condition))) kept.push_back(std::move(item));
    }
    items = std::move(kept);
    scope_ = outer;
  }
  if (items.empty()) {
    scope_ = std::make_shared<Scope>();
    scope_->parent = outer;
    const Flow flow = run(s.otherwise);
    scope_ = outer;
    return flow;
  }
  auto loop = std::make_shared<Loop>();
  const size_t count = items.size();
  loop->sequence = make_list(std::move(items), ListKind::Tuple);
  loop->depth = depth_of(loop->sequence) + 1;
  const List& sequence = *loop->sequence.list();
  for (; loop->index < count; ++loop->index) {
    line_ = s.line;
    charge(1);
    scope_ = std::make_shared<Scope>();
    scope_->parent = outer;
    scope_->set("loop", loop);
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
  auto inner = std::make_shared<Scope>();
  inner->parent = outer;
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
    scope_->set(target.name, value);
    return;
  }
  const Value* found = scope_->find(target.name);
  Space* space = found == nullptr ? nullptr : found->space();
  if (space == nullptr)
    fail(fmt::format("{} is no namespace; its members cannot be set", shown(target.name)));
  if (target.member[0] == '_')
    fail(fmt::format("a namespace cannot have the member {}", shown(target.member)));
  for (auto& member : space->members)
    if (member.first == target.member) {
      member.second = value;
      return;
    }
  charge(1);
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
  auto inner = std::make_shared<Scope>();
  inner->parent = function.scope;
  scope_ = inner;
  const int line = line_;
  std::vector<const Parameter*> open;
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& p = macro.parameters[i];
    const Value* given = arguments.get(i, p.name);
    inner->set(p.name, given != nullptr
                           ? *given
                           : make_undefined(fmt::format("parameter '{}' was not provided", shown(p.name))));
    if (given == nullptr && p.otherwise) open.push_back(&p);
  }
  for (const Parameter* p : open) inner->set(p->name, evaluate(*p->otherwise));
  line_ = line;
  if (const Value* caller = arguments.named("caller")) {
    if (!macro.uses_caller) fail(fmt::format("macro {} does not use its caller", shown(macro.name)));
    inner->set("caller", *caller);
  } else if (macro.uses_caller) {
    inner->set("caller", make_undefined("No caller defined"));
  }
  if (macro.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = macro.parameters.size(); i < arguments.positional().size(); ++i)
      rest.push_back(*arguments.get(i, {}));
    inner->set("varargs", make_list(std::move(rest), ListKind::Tuple));
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
      arguments.named(given);
      rest.emplace_back(make(given), value);
    }
    inner->set("kwargs", make_dict(std::move(rest)));
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
