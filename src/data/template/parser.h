// Tokens to a parsed template. What the interpreter cannot run is refused here, by name and line.
#pragma once

#include <string>
#include <string_view>

#include "data/template/lexer.h"
#include "data/template/limits.h"
#include "data/template/syntax.h"

namespace pleat::data::jinja {

class Parser {
 public:
  Parser(std::string_view source, const std::string& name, const TemplateLimits& limits);
  ParsedTemplate run();

 private:
  // Counts a level of nesting while it lives.
  class Level {
   public:
    explicit Level(Parser& parser);
    ~Level() { --parser_.level_; }
    Level(const Level&) = delete;

   private:
    Parser& parser_;
  };

  [[noreturn]] void fail(int line, std::string_view what) const;
  [[noreturn]] void unexpected() const;
  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  bool is_name(std::string_view name) const { return now().kind == TokenKind::Name && now().text == name; }
  bool is_operator(std::string_view op) const {
    return now().kind == TokenKind::Operator && now().text == op;
  }
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view op);
  void expect_operator(std::string_view op);
  void expect(TokenKind kind, std::string_view what);
  std::string expect_name();

  // Statements.
  Body body(std::initializer_list<std::string_view> ends);
  // The end of a tag, then statements up to one of the ends, which is left standing.
  Body block(std::initializer_list<std::string_view> ends);
  Statement statement();
  void if_statement(Statement& s);
  void for_statement(Statement& s);
  void set_statement(Statement& s);
  void macro_statement(Statement& s);
  void call_statement(Statement& s);
  void with_statement(Statement& s);
  std::vector<Parameter> parameters();
  Body macro_body(MacroCode& macro, std::string_view end);
  Target target(bool with_members);
  Target single_target(bool with_members);

  // Expressions, from loose to tight.
  ExpressionPtr tuple(bool with_condition, bool in_parentheses);
  ExpressionPtr expression();
  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr primary();
  ExpressionPtr postfix(ExpressionPtr e);
  ExpressionPtr subscript(ExpressionPtr e);
  ExpressionPtr filters(ExpressionPtr e, bool starts_inline);
  ExpressionPtr test(ExpressionPtr e);
  ExpressionPtr call(ExpressionPtr callee);
  Arguments arguments();
  // A finished node: its depth is counted and bounded.
  ExpressionPtr make(ExpressionKind kind, int line, std::vector<ExpressionPtr> parts, std::string name = {});
  void count_depth(Expression& e) const;
  bool at_tuple_end() const;
  // safe and escape make text that escapes whatever it is joined with; only where it is printed as it is
  // does that change nothing. Throws when more of them were met since `before` than `printed` itself.
  void check_markup(int before, const Expression* printed);

  std::string name_;
  const TemplateLimits& limits_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int level_ = 0;
  int loops_ = 0;
  bool marks_generation_ = false;
  int markup_ = 0, markup_line_ = 0;
  std::vector<MacroCode*> open_macros_;
};

}  // namespace pleat::data::jinja
