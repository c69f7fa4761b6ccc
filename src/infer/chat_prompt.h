// A conversation with a model that answers next: how it is written, and what ends the answer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"

namespace pleat::infer {

class ChatPrompt {
 public:
  // `tokenizer` must outlive this. Throws when it lacks what the template needs.
  ChatPrompt(const data::ChatTemplate& chat, const data::TextTokenizer& tokenizer);

  // Tokens up to where the assistant's next answer begins. Throws on what the template cannot write.
  std::vector<int32_t> encode(const std::vector<data::ChatMessage>& messages) const;
  // An answer ends before any of these.
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }
  const std::vector<std::string>& end_texts() const { return end_texts_; }
  // The answer without what the template puts behind it.
  std::string answer(std::string text) const;

 private:
  std::unique_ptr<data::ConversationEncoder> encoder_;
  std::vector<int32_t> end_tokens_;
  std::vector<std::string> end_texts_;
  std::string suffix_;
};

}  // namespace pleat::infer
