#include "infer/chat_prompt.h"

#include "data/chat/open_chat.h"

namespace pleat::infer {

ChatPrompt::ChatPrompt(const data::ChatTemplate& chat, const data::TextTokenizer& tokenizer)
    : encoder_(data::open_chat(chat, tokenizer)), end_tokens_(encoder_->end_of_answer()) {
  const auto assistant = chat.roles.find("assistant");
  if (assistant != chat.roles.end()) suffix_ = assistant->second.suffix;
  if (!end_tokens_.empty()) return;
  // No token ends the turn: the next one's beginning does.
  for (const auto& [name, role] : chat.roles)
    if (!role.prefix.empty()) end_texts_.push_back(suffix_ + role.prefix);
}

std::vector<int32_t> ChatPrompt::encode(const std::vector<data::ChatMessage>& messages) const {
  data::Conversation conversation;
  conversation.messages = messages;
  return encoder_->encode_prompt(conversation, "the conversation");
}

std::string ChatPrompt::answer(std::string text) const {
  if (!suffix_.empty() && text.ends_with(suffix_)) text.resize(text.size() - suffix_.size());
  return text;
}

}  // namespace pleat::infer
