// A template cut into text and the tokens of its tags, as Jinja cuts it with trim_blocks and lstrip_blocks:
// the first line end after a block is dropped, blanks before a block that starts its line are dropped, "-"
// beside a tag drops all white space on that side, "+" keeps what would be dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pleat::data::jinja {

enum class TokenKind {
  Text,
  BlockBegin,
  BlockEnd,
  PrintBegin,
  PrintEnd,
  Name,
  String,
  Integer,
  Float,
  Operator,
  End
};

struct Token {
  TokenKind kind = TokenKind::End;
  int line = 1;
  std::string text = {};  // of text, names, operators; the value of strings
  int64_t integer = 0;
  double real = 0;
};

// `name` stands in front of errors, with the line. The last token is End.
std::vector<Token> lex(std::string_view source, const std::string& name);

}  // namespace pleat::data::jinja
