// A conversation, whatever form its line had: messages as OpenAI writes them, and the tools they may call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/template/value.h"

namespace pleat::data {

struct ChatMessage {
  std::string role = {};
  std::string content = {};         // plain text; empty where the message has none
  std::optional<bool> counts = {};  // in the loss; nothing: as the role says
  // The message with all its members, in their order, as a map: role, content (text or none), and what else
  // it holds of name, tool_calls, tool_call_id, reasoning_content and thinking. None in a message that was
  // put together from role and content.
  TemplateValue whole = {};
};

// What a template's language sees: `whole`, or a map of role and content.
inline TemplateValue message_value(const ChatMessage& m) {
  if (!m.whole.is_none()) return m.whole;
  return TemplateValue::Map{{"role", m.role}, {"content", m.content}};
}

// How a line spelled its conversation.
enum class ChatForm {
  OpenAi,            // messages: role, content
  ShareGpt,          // conversations: from, value
  Alpaca,            // instruction, input, output
  PromptCompletion,  // prompt, completion
};
const char* chat_form_name(ChatForm form);

struct Conversation {
  std::vector<ChatMessage> messages = {};
  TemplateValue tools = {};  // a list as OpenAI has it, or none
  ChatForm form = ChatForm::OpenAi;
};

// Ids and, for each of them, 1 where it counts as a label. The end-of-document token is left to the writer of
// the dataset; `end_counts` says whether it belongs to the answer, which it does when the last message
// counts.
struct EncodedChat {
  std::vector<int32_t> tokens = {};
  std::vector<uint8_t> loss_mask = {};
  bool end_counts = false;
};

// Turns conversations into tokens. Safe to call from several threads.
class ConversationEncoder {
 public:
  virtual ~ConversationEncoder() = default;
  // Throws, with `where` (file and line) in front, on what it cannot write.
  virtual EncodedChat encode(const Conversation& conversation, std::string_view where) const = 0;
  // The conversation so far and what stands before the assistant's next answer: the prompt of a model that
  // is to give it.
  virtual std::vector<int32_t> encode_prompt(const Conversation& conversation,
                                             std::string_view where) const = 0;
  // Tokens any of which ends an answer; none where the form of the conversation has no such token.
  virtual std::vector<int32_t> end_of_answer() const = 0;
};

}  // namespace pleat::data
