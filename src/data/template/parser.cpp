#include "data/template/parser.h"

#include <algorithm>

#include "base/error.h"
#include "data/template/library.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data::jinja {

Parser::Level::Level(Parser& parser) : parser_(parser) {
  if (++parser_.level_ > parser_.limits_.nesting) {
    --parser_.level_;
    parser_.fail(parser_.now().line, fmt::format("nests deeper than {} levels", parser_.limits_.nesting));
  }
}

Parser::Parser(std::string_view source, const std::string& name, const TemplateLimits& limits)
    : name_(name), limits_(limits) {
  if (source.size() > limits.source_bytes)
    base::fail("{}: the template has {} bytes; at most {} are supported", name, source.size(),
               limits.source_bytes);
  tokens_ = lex(source, name_);
}

ParsedTemplate Parser::run() {
  ParsedTemplate out;
  out.body = body({});
  out.marks_generation = marks_generation_;
  return out;
}

void Parser::fail(int line, std::string_view what) const { base::fail("{}:{}: {}", name_, line, what); }

void Parser::unexpected() const {
  switch (now().kind) {
    case TokenKind::End:
      fail(now().line, "the template ends too early");
    case TokenKind::BlockEnd:
      fail(now().line, "unexpected %}");
    case TokenKind::PrintEnd:
      fail(now().line, "unexpected }}");
    default:
      fail(now().line, fmt::format("unexpected \"{}\"", shown(now().text, 40)));
  }
}

bool Parser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  ++at_;
  return true;
}

bool Parser::skip_operator(std::string_view op) {
  if (!is_operator(op)) return false;
  ++at_;
  return true;
}

void Parser::expect_operator(std::string_view op) {
  if (skip_operator(op)) return;
  if (now().kind == TokenKind::Operator || now().kind == TokenKind::Name)
    fail(now().line, fmt::format("expected \"{}\", got \"{}\"", op, shown(now().text, 40)));
  unexpected();
}

void Parser::expect(TokenKind kind, std::string_view what) {
  if (now().kind != kind) {
    if (now().kind == TokenKind::Name || now().kind == TokenKind::Operator)
      fail(now().line, fmt::format("expected {}, got \"{}\"", what, shown(now().text, 40)));
    unexpected();
  }
  ++at_;
}

std::string Parser::expect_name() {
  if (now().kind != TokenKind::Name) unexpected();
  return tokens_[at_++].text;
}

Body Parser::body(std::initializer_list<std::string_view> ends) {
  const Level level(*this);
  Body out;
  for (;;) {
    const Token& token = now();
    switch (token.kind) {
      case TokenKind::Text: {
        Statement s;
        s.line = token.line;
        s.text = std::make_shared<TracedText>(token.text);
        out.push_back(std::move(s));
        ++at_;
        break;
      }
      case TokenKind::PrintBegin: {
        ++at_;
        Statement s;
        s.kind = StatementKind::Print;
        s.line = token.line;
        const int markup = markup_;
        s.expression = tuple(true, false);
        check_markup(markup, s.expression.get());
        expect(TokenKind::PrintEnd, "}}");
        out.push_back(std::move(s));
        break;
      }
      case TokenKind::BlockBegin: {
        ++at_;
        for (const std::string_view end : ends)
          if (is_name(end)) return out;
        const int markup = markup_;
        out.push_back(statement());
        check_markup(markup, nullptr);
        expect(TokenKind::BlockEnd, "%}");
        break;
      }
      case TokenKind::End:
        if (ends.size() != 0)
          fail(token.line, fmt::format("the template ends, but {{% {} %}} is missing", *(ends.end() - 1)));
        return out;
      default:
        unexpected();
    }
  }
}

void Parser::check_markup(int before, const Expression* printed) {
  const bool is_last =
      printed != nullptr && printed->kind == ExpressionKind::Filter && is_markup_filter(printed->name);
  if (markup_ - before > (is_last ? 1 : 0))
    fail(markup_line_, "the filters safe and escape are supported only as the last of a {{ }}");
  markup_ = before;
}

Body Parser::block(std::initializer_list<std::string_view> ends) {
  skip_operator(":");
  expect(TokenKind::BlockEnd, "%}");
  return body(ends);
}

Statement Parser::statement() {
  Statement s;
  s.line = now().line;
  const std::string tag = expect_name();
  if (tag == "if") {
    if_statement(s);
  } else if (tag == "for") {
    for_statement(s);
  } else if (tag == "set") {
    set_statement(s);
  } else if (tag == "macro") {
    macro_statement(s);
  } else if (tag == "call") {
    call_statement(s);
  } else if (tag == "with") {
    with_statement(s);
  } else if (tag == "filter") {
    s.kind = StatementKind::Filter;
    s.expression = filters(nullptr, true);
    s.body = block({"endfilter"});
    ++at_;
  } else if (tag == "generation") {
    s.kind = StatementKind::Generation;
    marks_generation_ = true;
    const int loops = std::exchange(loops_, 0);
    s.body = block({"endgeneration"});
    loops_ = loops;
    ++at_;
  } else if (tag == "print") {
    s.kind = StatementKind::Print;
    s.expression = expression();
  } else if (tag == "break" || tag == "continue") {
    if (loops_ == 0) fail(s.line, fmt::format("{} outside of a loop", tag));
    s.kind = tag == "break" ? StatementKind::Break : StatementKind::Continue;
  } else {
    static constexpr std::string_view kKnown[] = {"include",    "import", "from",  "extends", "block",
                                                  "autoescape", "do",     "trans", "debug"};
    if (std::find(std::begin(kKnown), std::end(kKnown), tag) != std::end(kKnown))
      fail(s.line, fmt::format("{{% {} %}} is not supported in a chat template", tag));
    fail(s.line, fmt::format("unknown tag \"{}\"", shown(tag, 40)));
  }
  return s;
}

void Parser::if_statement(Statement& s) {
  s.kind = StatementKind::If;
  for (;;) {
    ExpressionPtr condition = tuple(false, false);
    Body then = block({"elif", "else", "endif"});
    s.branches.emplace_back(std::move(condition), std::move(then));
    if (skip_name("elif")) continue;
    if (skip_name("else")) s.otherwise = block({"endif"});
    ++at_;
    return;
  }
}

void Parser::for_statement(Statement& s) {
  s.kind = StatementKind::For;
  s.target = target(false);
  if (!skip_name("in")) unexpected();
  s.expression = tuple(false, false);
  if (skip_name("if")) s.condition = expression();
  if (is_name("recursive")) fail(s.line, "recursive loops are not supported in a chat template");
  ++loops_;
  s.body = block({"else", "endfor"});
  --loops_;
  if (skip_name("else")) s.otherwise = block({"endfor"});
  ++at_;
}

void Parser::set_statement(Statement& s) {
  s.target = target(true);
  if (skip_operator("=")) {
    s.kind = StatementKind::Set;
    s.expression = tuple(true, false);
    return;
  }
  s.kind = StatementKind::SetBlock;
  s.expression = filters(nullptr, false);
  const int loops = std::exchange(loops_, 0);
  s.body = block({"endset"});
  loops_ = loops;
  ++at_;
}

Body Parser::macro_body(MacroCode& macro, std::string_view end) {
  const int loops = std::exchange(loops_, 0);
  open_macros_.push_back(&macro);
  Body out = block({end});
  open_macros_.pop_back();
  loops_ = loops;
  ++at_;
  return out;
}

void Parser::macro_statement(Statement& s) {
  s.kind = StatementKind::Macro;
  s.macro = std::make_unique<MacroCode>();
  s.macro->name = expect_name();
  s.macro->parameters = parameters();
  s.macro->body = macro_body(*s.macro, "endmacro");
}

void Parser::call_statement(Statement& s) {
  s.kind = StatementKind::Call;
  s.macro = std::make_unique<MacroCode>();
  s.macro->name = "caller";
  if (is_operator("(")) s.macro->parameters = parameters();
  s.expression = expression();
  if (s.expression->kind != ExpressionKind::Call) fail(s.line, "{% call %} needs a call");
  s.macro->body = macro_body(*s.macro, "endcall");
}

void Parser::with_statement(Statement& s) {
  s.kind = StatementKind::With;
  while (now().kind != TokenKind::BlockEnd) {
    if (!s.assignments.empty()) expect_operator(",");
    Target t = single_target(false);
    expect_operator("=");
    s.assignments.emplace_back(std::move(t), expression());
  }
  s.body = block({"endwith"});
  ++at_;
}

std::vector<Parameter> Parser::parameters() {
  std::vector<Parameter> out;
  expect_operator("(");
  while (!is_operator(")")) {
    if (!out.empty()) expect_operator(",");
    Parameter p{expect_name(), nullptr};
    if (skip_operator("="))
      p.otherwise = expression();
    else if (!out.empty() && out.back().otherwise != nullptr)
      fail(now().line, fmt::format("parameter {} needs a default like those before it", shown(p.name, 40)));
    out.push_back(std::move(p));
  }
  ++at_;
  return out;
}

Target Parser::single_target(bool with_members) {
  const Level level(*this);
  Target out;
  out.line = now().line;
  if (skip_operator("(")) {
    out = target(with_members);
    expect_operator(")");
    return out;
  }
  out.name = expect_name();
  static constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
  if (std::find(std::begin(kConstants), std::end(kConstants), out.name) != std::end(kConstants))
    fail(out.line, fmt::format("cannot assign to {}", out.name));
  if (with_members && skip_operator(".")) out.member = expect_name();
  return out;
}

Target Parser::target(bool with_members) {
  const int line = now().line;
  Target first = single_target(with_members);
  if (!is_operator(",")) return first;
  Target out;
  out.line = line;
  out.parts.push_back(std::move(first));
  while (skip_operator(",")) {
    if (now().kind == TokenKind::BlockEnd || is_operator(")") || is_operator("=") || is_name("in")) break;
    out.parts.push_back(single_target(with_members));
  }
  return out;
}

}  // namespace pleat::data::jinja
