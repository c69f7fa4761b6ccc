// Expressions, with Jinja's precedence.
#include <algorithm>

#include "base/error.h"
#include "data/template/library.h"
#include "data/template/parser.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data::jinja {
namespace {

template <class... P>
std::vector<ExpressionPtr> parts_of(P... p) {
  std::vector<ExpressionPtr> out;
  (out.push_back(std::move(p)), ...);
  return out;
}

// Tags of these names stand behind an expression and are no part of it.
bool ends_test_argument(const Token& token) {
  return token.kind == TokenKind::Name && (token.text == "else" || token.text == "or" || token.text == "and");
}

}  // namespace

void Parser::count_depth(Expression& e) const {
  const auto see = [&](const ExpressionPtr& part) {
    if (part) e.depth = std::max(e.depth, part->depth + 1);
  };
  for (const ExpressionPtr& part : e.parts) see(part);
  for (const ExpressionPtr& part : e.arguments.positional) see(part);
  for (const auto& part : e.arguments.named) see(part.second);
  see(e.arguments.star);
  see(e.arguments.star_star);
  if (e.depth > 2 * limits_.nesting)
    fail(e.line, fmt::format("an expression nests deeper than {} levels", 2 * limits_.nesting));
}

ExpressionPtr Parser::make(ExpressionKind kind, int line, std::vector<ExpressionPtr> parts,
                           std::string name) {
  auto e = std::make_unique<Expression>();
  e->kind = kind;
  e->line = line;
  e->parts = std::move(parts);
  e->name = std::move(name);
  count_depth(*e);
  return e;
}

bool Parser::at_tuple_end() const {
  return now().kind == TokenKind::PrintEnd || now().kind == TokenKind::BlockEnd || is_operator(")");
}

ExpressionPtr Parser::tuple(bool with_condition, bool in_parentheses) {
  const int line = now().line;
  std::vector<ExpressionPtr> parts;
  bool is_tuple = false;
  while (!at_tuple_end()) {
    parts.push_back(with_condition ? expression() : either());
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && parts.size() == 1) return std::move(parts[0]);
  if (parts.empty() && !in_parentheses) fail(line, "an expression is missing");
  return make(ExpressionKind::Tuple, line, std::move(parts));
}

ExpressionPtr Parser::expression() {
  const Level level(*this);
  const int line = now().line;
  ExpressionPtr e = either();
  while (skip_name("if")) {
    ExpressionPtr condition = either();
    ExpressionPtr otherwise;
    if (skip_name("else")) otherwise = expression();
    e = make(ExpressionKind::Conditional, line,
             parts_of(std::move(e), std::move(condition), std::move(otherwise)));
  }
  return e;
}

ExpressionPtr Parser::either() {
  const int line = now().line;
  ExpressionPtr e = both();
  while (skip_name("or")) e = make(ExpressionKind::Or, line, parts_of(std::move(e), both()));
  return e;
}

ExpressionPtr Parser::both() {
  const int line = now().line;
  ExpressionPtr e = negation();
  while (skip_name("and")) e = make(ExpressionKind::And, line, parts_of(std::move(e), negation()));
  return e;
}

ExpressionPtr Parser::negation() {
  const int line = now().line;
  if (!skip_name("not")) return comparison();
  const Level level(*this);
  return make(ExpressionKind::Not, line, parts_of(negation()));
}

ExpressionPtr Parser::comparison() {
  const int line = now().line;
  std::vector<ExpressionPtr> parts = parts_of(sum());
  std::vector<std::string> operators;
  static constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
  for (;;) {
    if (now().kind == TokenKind::Operator &&
        std::find(std::begin(kOperators), std::end(kOperators), now().text) != std::end(kOperators)) {
      operators.push_back(now().text);
      ++at_;
    } else if (skip_name("in")) {
      operators.emplace_back("in");
    } else if (is_name("not") && after().kind == TokenKind::Name && after().text == "in") {
      at_ += 2;
      operators.emplace_back("not in");
    } else {
      break;
    }
    parts.push_back(sum());
  }
  if (operators.empty()) return std::move(parts[0]);
  ExpressionPtr e = make(ExpressionKind::Compare, line, std::move(parts));
  e->operators = std::move(operators);
  return e;
}

ExpressionPtr Parser::sum() {
  const int line = now().line;
  ExpressionPtr e = concatenation();
  while (is_operator("+") || is_operator("-")) {
    std::string op = tokens_[at_++].text;
    e = make(ExpressionKind::Arithmetic, line, parts_of(std::move(e), concatenation()), std::move(op));
  }
  return e;
}

ExpressionPtr Parser::concatenation() {
  const int line = now().line;
  std::vector<ExpressionPtr> parts = parts_of(product());
  while (skip_operator("~")) parts.push_back(product());
  if (parts.size() == 1) return std::move(parts[0]);
  return make(ExpressionKind::Concat, line, std::move(parts));
}

ExpressionPtr Parser::product() {
  const int line = now().line;
  ExpressionPtr e = power();
  while (is_operator("*") || is_operator("/") || is_operator("//") || is_operator("%")) {
    std::string op = tokens_[at_++].text;
    e = make(ExpressionKind::Arithmetic, line, parts_of(std::move(e), power()), std::move(op));
  }
  return e;
}

ExpressionPtr Parser::power() {
  const int line = now().line;
  ExpressionPtr e = unary(true);
  while (skip_operator("**"))
    e = make(ExpressionKind::Arithmetic, line, parts_of(std::move(e), unary(true)), "**");
  return e;
}

ExpressionPtr Parser::unary(bool with_filters) {
  const Level level(*this);
  const int line = now().line;
  ExpressionPtr e;
  if (skip_operator("-"))
    e = make(ExpressionKind::Minus, line, parts_of(unary(false)));
  else if (skip_operator("+"))
    e = make(ExpressionKind::Plus, line, parts_of(unary(false)));
  else
    e = primary();
  e = postfix(std::move(e));
  if (!with_filters) return e;
  for (;;) {
    if (is_operator("|"))
      e = filters(std::move(e), false);
    else if (is_name("is"))
      e = test(std::move(e));
    else if (is_operator("("))
      e = call(std::move(e));
    else
      return e;
  }
}

ExpressionPtr Parser::primary() {
  const Token& token = now();
  const int line = token.line;
  const auto constant = [&](Value value) {
    ExpressionPtr e = make(ExpressionKind::Constant, line, {});
    e->constant = std::move(value);
    return e;
  };
  switch (token.kind) {
    case TokenKind::Name: {
      ++at_;
      const std::string& name = token.text;
      if (name == "true" || name == "True") return constant(true);
      if (name == "false" || name == "False") return constant(false);
      if (name == "none" || name == "None") return constant(None{});
      for (MacroCode* macro : open_macros_) {
        macro->uses_varargs |= name == "varargs";
        macro->uses_kwargs |= name == "kwargs";
        macro->uses_caller |= name == "caller";
      }
      return make(ExpressionKind::Name, line, {}, name);
    }
    case TokenKind::String: {
      std::string text;
      while (now().kind == TokenKind::String) text += tokens_[at_++].text;
      return constant(std::make_shared<const TracedText>(std::move(text)));
    }
    case TokenKind::Integer:
      ++at_;
      return constant(token.integer);
    case TokenKind::Float:
      ++at_;
      return constant(token.real);
    default:
      break;
  }
  if (skip_operator("(")) {
    ExpressionPtr e = tuple(true, true);
    expect_operator(")");
    return e;
  }
  std::vector<ExpressionPtr> parts;
  if (skip_operator("[")) {
    while (!is_operator("]")) {
      if (!parts.empty()) expect_operator(",");
      if (is_operator("]")) break;
      parts.push_back(expression());
    }
    ++at_;
    return make(ExpressionKind::List, line, std::move(parts));
  }
  if (skip_operator("{")) {
    while (!is_operator("}")) {
      if (!parts.empty()) expect_operator(",");
      if (is_operator("}")) break;
      parts.push_back(expression());
      expect_operator(":");
      parts.push_back(expression());
    }
    ++at_;
    return make(ExpressionKind::Dict, line, std::move(parts));
  }
  unexpected();
}

ExpressionPtr Parser::postfix(ExpressionPtr e) {
  for (;;) {
    if (is_operator(".") || is_operator("["))
      e = subscript(std::move(e));
    else if (is_operator("("))
      e = call(std::move(e));
    else
      return e;
  }
}

ExpressionPtr Parser::subscript(ExpressionPtr e) {
  const int line = now().line;
  if (skip_operator(".")) {
    if (now().kind == TokenKind::Integer) {
      ExpressionPtr index = make(ExpressionKind::Constant, line, {});
      index->constant = tokens_[at_++].integer;
      return make(ExpressionKind::Item, line, parts_of(std::move(e), std::move(index)));
    }
    return make(ExpressionKind::Attribute, line, parts_of(std::move(e)), expect_name());
  }
  expect_operator("[");
  ExpressionPtr parts[3];
  int part = 0;
  while (!is_operator("]")) {
    if (skip_operator(":")) {
      if (++part > 2) unexpected();
      continue;
    }
    if (parts[part] != nullptr) unexpected();
    parts[part] = expression();
    if (is_operator(",")) fail(line, "a subscript of several parts is not supported");
  }
  ++at_;
  if (part > 0)
    return make(ExpressionKind::Slice, line,
                parts_of(std::move(e), std::move(parts[0]), std::move(parts[1]), std::move(parts[2])));
  if (parts[0] == nullptr) fail(line, "a subscript is empty");
  return make(ExpressionKind::Item, line, parts_of(std::move(e), std::move(parts[0])));
}

Arguments Parser::arguments() {
  Arguments out;
  expect_operator("(");
  bool first = true;
  while (!is_operator(")")) {
    if (!std::exchange(first, false)) {
      expect_operator(",");
      if (is_operator(")")) break;
    }
    const int line = now().line;
    bool fits = true;
    if (skip_operator("*")) {
      fits = !out.star && !out.star_star;
      out.star = expression();
    } else if (skip_operator("**")) {
      fits = !out.star_star;
      out.star_star = expression();
    } else if (now().kind == TokenKind::Name && after().kind == TokenKind::Operator && after().text == "=") {
      fits = !out.star_star;
      std::string name = now().text;
      at_ += 2;
      for (const auto& named : out.named) fits &= named.first != name;
      out.named.emplace_back(std::move(name), expression());
    } else {
      fits = !out.star && !out.star_star && out.named.empty();
      out.positional.push_back(expression());
    }
    if (!fits) fail(line, "arguments of a call are in the wrong order or given twice");
  }
  ++at_;
  return out;
}

ExpressionPtr Parser::call(ExpressionPtr callee) {
  const int line = now().line;
  if (callee->kind == ExpressionKind::Attribute && !is_method(callee->name))
    fail(callee->line, fmt::format("the method {}() is not supported", shown(callee->name, 40)));
  if (callee->kind == ExpressionKind::Name && is_refused_global(callee->name))
    fail(callee->line, fmt::format("the function {}() is not supported", callee->name));
  ExpressionPtr e = make(ExpressionKind::Call, line, parts_of(std::move(callee)));
  e->arguments = arguments();
  count_depth(*e);
  return e;
}

ExpressionPtr Parser::filters(ExpressionPtr e, bool starts_inline) {
  while (starts_inline || skip_operator("|")) {
    starts_inline = false;
    const int line = now().line;
    std::string name = expect_name();
    if (!is_filter(name)) fail(line, fmt::format("the filter \"{}\" is not supported", shown(name, 40)));
    if (is_markup_filter(name)) {
      ++markup_;
      markup_line_ = line;
    }
    e = make(ExpressionKind::Filter, line, parts_of(std::move(e)), std::move(name));
    if (is_operator("(")) e->arguments = arguments();
    count_depth(*e);
  }
  return e;
}

ExpressionPtr Parser::test(ExpressionPtr e) {
  const int line = now().line;
  ++at_;
  const bool negated = skip_name("not");
  std::string name = expect_name();
  if (!is_test(name)) fail(line, fmt::format("the test \"{}\" is not supported", shown(name, 40)));
  e = make(ExpressionKind::Test, line, parts_of(std::move(e)), std::move(name));
  const bool value_follows = now().kind == TokenKind::Name || now().kind == TokenKind::String ||
                             now().kind == TokenKind::Integer || now().kind == TokenKind::Float ||
                             is_operator("[") || is_operator("{");
  if (is_operator("(")) {
    e->arguments = arguments();
  } else if (value_follows && !ends_test_argument(now())) {
    if (is_name("is")) fail(line, "tests cannot be chained with \"is\"");
    e->arguments.positional.push_back(postfix(primary()));
  }
  count_depth(*e);
  return negated ? make(ExpressionKind::Not, line, parts_of(std::move(e))) : std::move(e);
}

}  // namespace pleat::data::jinja
