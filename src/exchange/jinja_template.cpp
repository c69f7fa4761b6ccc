#include "exchange/jinja_template.h"

#include <fmt/format.h>

namespace pleat::exchange {
namespace {

// A Jinja string. Backslashes are read as Python reads them; everything else may stand as it is.
std::string literal(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\\' || c == '\'') out += '\\';
    if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else
      out += c;
  }
  return out + "'";
}

std::string printed(const std::string& text) {
  return text.empty() ? "" : fmt::format("{{{{- {} -}}}}\n", literal(text));
}

}  // namespace

std::string jinja_template(const data::ChatTemplate& chat) {
  // White space between the tags is dropped by their dashes.
  std::string out = "{%- if tools -%}{{- raise_exception('this template has no tools') -}}{%- endif -%}\n";
  out += printed(chat.begin);
  out += "{%- for message in messages -%}\n";
  const char* word = "if";
  for (const auto& [name, role] : chat.roles) {
    const bool speaks_for_developer = name == "system" && !chat.roles.contains("developer");
    out += fmt::format("{{%- {} message['role'] == {}{} -%}}\n", word, literal(name),
                       speaks_for_developer ? " or message['role'] == 'developer'" : "");
    out += fmt::format("{{{{- {} + (message['content'] or '') + {} -}}}}\n", literal(role.prefix),
                       literal(role.suffix));
    word = "elif";
  }
  if (!chat.roles.empty())
    out +=
        "{%- else -%}\n{{- raise_exception('this template has no role ' + message['role']) -}}\n{%- endif "
        "-%}\n";
  out += "{%- endfor -%}\n";
  const auto assistant = chat.roles.find("assistant");
  const std::string prefix = assistant == chat.roles.end() ? "" : printed(assistant->second.prefix);
  out += "{%- if add_generation_prompt -%}\n" + prefix;
  if (!chat.end.empty()) out += "{%- else -%}\n" + printed(chat.end);
  out += "{%- endif -%}\n";
  return out;
}

}  // namespace pleat::exchange
