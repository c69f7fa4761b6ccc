// How a conversation becomes tokens: begin, then prefix + content + suffix of every message, then end.
// Strings only, no language to evaluate.
//
// The strings of the template may spell special tokens and get their ids. What people wrote never does:
// content that spells "<|im_end|>" is encoded as plain text, so no conversation can end its own turn. Each of
// the strings and each content is encoded by itself, as it is when a model is asked: the prompt ends with the
// assistant's prefix, and the answer begins a new encoding. The loss mask is therefore exact to the token.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/conversation.h"
#include "data/tokenizer/text_tokenizer.h"

namespace pleat::data {

struct ChatTemplate {
  struct Role {
    std::string prefix = {};
    std::string suffix = {};
  };
  std::string name = {};                   // of a preset, or "custom"
  std::string begin = {};                  // before the first message
  std::string end = {};                    // after the last; the end-of-document token follows by itself
  std::map<std::string, Role> roles = {};  // others are refused
  std::vector<std::string> needs = {};     // special tokens without which the strings lose their meaning
};

// chatml, llama3 or plain; "tokenizer", which has no strings (open_chat.h); throws naming these for anything
// else.
ChatTemplate chat_preset(std::string_view name);

class ChatEncoder final : public ConversationEncoder {
 public:
  // `tokenizer` must outlive the encoder. Throws when it lacks a token the template needs.
  ChatEncoder(const ChatTemplate& chat_template, const TextTokenizer& tokenizer);

  // Content and suffix of the assistant's messages count, and those of messages that ask for it; then `end`
  // counts with the last message. Throws on a role the template does not have (a developer speaks as the
  // system where it has no strings of its own), and on what strings cannot say: tools, calls of them,
  // reasoning, names.
  EncodedChat encode(const Conversation& conversation, std::string_view where) const override;
  std::vector<int32_t> encode_prompt(const Conversation& conversation, std::string_view where) const override;
  // The special token the assistant's suffix begins with.
  std::vector<int32_t> end_of_answer() const override { return end_of_answer_; }

 private:
  struct Role {
    std::vector<int32_t> prefix, suffix;
  };
  std::vector<int32_t> encode_template(std::string_view text);
  // Begin and messages, without the end.
  EncodedChat encode_messages(const Conversation& conversation, std::string_view where) const;

  std::string name_;
  const TextTokenizer& tokenizer_;
  std::vector<SpecialToken> special_tokens_;
  std::vector<int32_t>
      never_;  // sorted: what the template uses and what ends a document, not to be had from content
  std::vector<int32_t> begin_, end_, end_of_answer_;
  std::map<std::string, Role, std::less<>> roles_;
};

}  // namespace pleat::data
