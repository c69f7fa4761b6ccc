// A parsed template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/template/runtime.h"

namespace pleat::data::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Body = std::vector<Statement>;

enum class ExpressionKind {
  Constant,     // constant
  Name,         // name
  List,         // parts
  Tuple,        // parts
  Dict,         // parts: key, value, key, value
  Attribute,    // parts[0].name
  Item,         // parts[0][parts[1]]
  Slice,        // parts[0][parts[1]:parts[2]:parts[3]], any of the last three null
  Call,         // parts[0](arguments)
  Filter,       // parts[0] | name(arguments); parts[0] null where a block's text takes its place
  Test,         // parts[0] is name(arguments)
  Not,          // parts[0]
  Minus,        // parts[0]
  Plus,         // parts[0]
  And,          // parts[0], parts[1]
  Or,           // parts[0], parts[1]
  Conditional,  // parts[0] if parts[1] else parts[2], which may be null
  Compare,      // parts[0] operators[0] parts[1] operators[1] parts[2] ...
  Concat,       // parts
  Arithmetic,   // parts[0] name parts[1]
};

struct Arguments {
  std::vector<ExpressionPtr> positional = {};
  std::vector<std::pair<std::string, ExpressionPtr>> named = {};
  ExpressionPtr star = {}, star_star = {};  // *list, **map
};

struct Expression {
  ExpressionKind kind = ExpressionKind::Constant;
  int line = 0;
  int depth = 1;
  std::string name = {};
  Value constant = {};
  std::vector<ExpressionPtr> parts = {};
  std::vector<std::string> operators = {};
  Arguments arguments = {};
};

// What set, for and with assign to: a name, a member of a namespace, or several of them.
struct Target {
  std::string name = {};
  std::string member = {};         // of the namespace `name`
  std::vector<Target> parts = {};  // then the two above are empty
  int line = 0;
};

struct Parameter {
  std::string name;
  ExpressionPtr otherwise;
};

enum class StatementKind {
  Text,        // text
  Print,       // expression
  If,          // branches; otherwise
  For,         // target in expression if condition; body; otherwise
  Set,         // target = expression
  SetBlock,    // target = body, through the filters of expression
  Macro,       // macro
  Call,        // expression is the call, macro its body
  Filter,      // body through the filters of expression
  With,        // assignments; body
  Generation,  // body
  Break,
  Continue,
};

// A macro, or the body of a call block.
struct MacroCode {
  std::string name = {};
  std::vector<Parameter> parameters = {};
  Body body;  // without "= {}": a statement is not known yet
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Statement {
  StatementKind kind = StatementKind::Text;
  int line = 0;
  Text text = {};
  ExpressionPtr expression = {}, condition = {};
  Target target = {};
  std::vector<std::pair<ExpressionPtr, Body>> branches = {};
  std::vector<std::pair<Target, ExpressionPtr>> assignments = {};
  Body body = {}, otherwise = {};
  std::unique_ptr<MacroCode> macro = {};
};

struct ParsedTemplate {
  Body body = {};
  bool marks_generation = false;
};

}  // namespace pleat::data::jinja
