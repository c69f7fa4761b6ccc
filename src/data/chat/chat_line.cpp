#include "data/chat/chat_line.h"

#include "data/chat/chat_forms.h"
#include "data/chat/json_value.h"

namespace pleat::data {
namespace {

// Members of a line that some form reads, or that say it is none of ours.
constexpr std::string_view kLineMembers[] = {
    "messages", "conversations", "prompt", "completion", "instruction", "input",  "output",
    "system",   "history",       "tools",  "functions",  "label",       "chosen", "rejected"};

// Both lists of turns go by their elements: some datasets write role and content under "conversations".
bool has_turns(const TemplateValue& turns) {
  return turns.list() && !turns.list()->empty() && turns.list()->front().member("from") != nullptr;
}

}  // namespace

const char* chat_form_name(ChatForm form) {
  switch (form) {
    case ChatForm::OpenAi:
      return "OpenAI";
    case ChatForm::ShareGpt:
      return "ShareGPT";
    case ChatForm::Alpaca:
      return "Alpaca";
    case ChatForm::PromptCompletion:
      return "prompt and completion";
  }
  return "";
}

Conversation conversation_from_json(std::string_view text, std::string_view where) {
  const TemplateValue line = value_from_json(text, where, kLineMembers);
  const ChatPlace place{where};
  if (!line.map()) place.fail("the line is {}; a JSON object is needed", kind_of(line));
  const TemplateValue* messages = line.member("messages");
  const TemplateValue* conversations = line.member("conversations");
  if (messages && conversations)
    place.fail("the line has both \"messages\" and \"conversations\"; one conversation is needed");
  const TemplateValue* turns = messages ? messages : conversations;
  Conversation out;
  if (turns) {
    const char* name = messages ? "messages" : "conversations";
    if (!turns->list()) place.fail("\"{}\" holds {}; a list of messages is needed", name, kind_of(*turns));
    if (turns->list()->empty()) place.fail("\"{}\" is empty; at least one message is needed", name);
    has_turns(*turns) ? read_sharegpt(line, *turns, where, out) : read_openai(line, *turns, where, out);
  } else if (line.member("prompt") && line.member("completion")) {
    read_prompt_completion(line, where, out);
  } else if (line.member("instruction") && line.member("output")) {
    read_alpaca(line, where, out);
  } else if (line.member("chosen") || line.member("rejected")) {
    place.fail(
        "\"chosen\" and \"rejected\" are pairs to prefer from, which are not learned; a "
        "conversation is needed");
  } else {
    place.fail(
        "the object has no \"messages\"; needed is that, \"conversations\", \"prompt\" and "
        "\"completion\", or \"instruction\" and \"output\"");
  }
  return out;
}

}  // namespace pleat::data
