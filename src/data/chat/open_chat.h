// The encoder a chat template names: its strings, or for "tokenizer" the template in the tokenizer's folder.
#pragma once

#include <memory>

#include "data/chat/chat_template.h"
#include "data/chat/conversation.h"

namespace pleat::data {

inline constexpr const char* kTokenizersOwn = "tokenizer";

// `tokenizer` must outlive the encoder.
std::unique_ptr<ConversationEncoder> open_chat(const ChatTemplate& chat_template,
                                               const TextTokenizer& tokenizer);
// What decides how conversations are encoded, besides the tokenizer itself: changes when any of it does.
std::string chat_fingerprint(const ChatTemplate& chat_template, const TextTokenizer& tokenizer);

}  // namespace pleat::data
