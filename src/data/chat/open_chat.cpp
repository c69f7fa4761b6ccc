#include "data/chat/open_chat.h"

#include <fmt/format.h>

#include "base/hash.h"
#include "data/chat/template_files.h"
#include "data/chat/tokenizer_chat.h"

namespace pleat::data {

std::unique_ptr<ConversationEncoder> open_chat(const ChatTemplate& chat_template,
                                               const TextTokenizer& tokenizer) {
  if (chat_template.name == kTokenizersOwn) return std::make_unique<TokenizerChat>(tokenizer);
  return std::make_unique<ChatEncoder>(chat_template, tokenizer);
}

std::string chat_fingerprint(const ChatTemplate& chat_template, const TextTokenizer& tokenizer) {
  if (chat_template.name == kTokenizersOwn) return read_folder_templates(tokenizer.name()).hash();
  std::string all;
  const auto add = [&](std::string_view text) { all += fmt::format("{}:{};", text.size(), text); };
  add(chat_template.begin);
  add(chat_template.end);
  for (const auto& [name, role] : chat_template.roles) {
    add(name);
    add(role.prefix);
    add(role.suffix);
  }
  return base::to_hex(base::sha256(all));
}

}  // namespace pleat::data
