// Fuzzes chat JSONL: a line gives a conversation, which a template turns into tokens with a mask, or a short,
// printable error, nothing else. And content never becomes a special token.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/byte_tokenizer.h"
#include "data/chat/chat_line.h"
#include "data/chat/chat_template.h"

namespace {

pleat::data::ChatTemplate with_special_tokens() {
  pleat::data::ChatTemplate t = pleat::data::chat_preset("plain");
  t.begin = "<|endoftext|>";
  for (auto& [name, role] : t.roles) role.suffix = "<|endoftext|>\n";
  return t;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pleat::data;
  static const ByteTokenizer tokenizer;
  static const ChatEncoder encoder(with_special_tokens(), tokenizer);
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  try {
    const Conversation conversation = conversation_from_json(line, "fuzz.jsonl:1");
    const std::vector<ChatMessage>& messages = conversation.messages;
    if (messages.empty()) std::abort();
    size_t text = 0;
    for (const ChatMessage& message : messages) {
      text += message.content.size();
      if (message.role.empty() || *message.whole.member("role") != TemplateValue(message.role)) std::abort();
    }
    if (text > size) std::abort();
    const EncodedChat chat = encoder.encode(conversation, "fuzz.jsonl:1");
    if (chat.tokens.size() != chat.loss_mask.size()) std::abort();
    if (std::any_of(chat.loss_mask.begin(), chat.loss_mask.end(), [](uint8_t m) { return m > 1; }))
      std::abort();
    const auto ends = std::count(chat.tokens.begin(), chat.tokens.end(), ByteTokenizer::kEndOfDocument);
    if (static_cast<size_t>(ends) != messages.size() + 1) std::abort();
  } catch (const pleat::base::Error& error) {
    const std::string_view message = error.what();
    if (message.size() > 300 || !message.starts_with("fuzz.jsonl:1: ")) std::abort();
    for (const unsigned char c : message)  // letters of other scripts may stand in what is quoted
      if (c < 0x20 || c == 0x7f) std::abort();
  }
  return 0;
}
