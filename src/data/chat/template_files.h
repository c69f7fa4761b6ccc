// What the folder of a tokenizer says about conversations, as transformers reads it: chat_template.jinja and
// additional_chat_templates/NAME.jinja; without those "chat_template" of tokenizer_config.json, a string or
// a list of named templates; without that "chat_template" of chat_template.json. Special tokens come from
// tokenizer_config.json and special_tokens_map.json.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace pleat::data {

struct NamedTemplate {
  std::string name = {};    // "default" where there is one only
  std::string source = {};  // the text of the template
  std::string where = {};   // the file it is from
};

struct FolderTemplates {
  std::vector<NamedTemplate> templates = {};
  // bos_token, eos_token and the like, by the names templates use.
  std::vector<std::pair<std::string, std::string>> special_tokens = {};

  const NamedTemplate* find(const std::string& name) const;
  // SHA-256 of all of it, in hexadecimal digits.
  std::string hash() const;
};

// The templates beside the tokenizer file `tokenizer`. Throws when there are none.
FolderTemplates read_folder_templates(const std::string& tokenizer);

}  // namespace pleat::data
