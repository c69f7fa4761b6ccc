// A question and its answer: Alpaca's instruction and output, and prompt with completion.
#include "data/chat/chat_forms.h"
#include "data/chat/json_value.h"

namespace pleat::data {
namespace {

// The text of a member that may be missing or null.
std::string optional_text(const TemplateValue& line, const char* name, const ChatPlace& place) {
  const TemplateValue* value = line.member(name);
  return value && !value->is_none() ? text_of(*value, name, place) : std::string();
}

void add_list(const TemplateValue& messages, const char* name, std::string_view where, Conversation& out) {
  if (messages.list()->empty()) ChatPlace{where}.fail("\"{}\" is empty; a message is needed", name);
  for (const TemplateValue& message : *messages.list())
    out.messages.push_back(openai_message(message, {where, out.messages.size() + 1}));
}

}  // namespace

// Instruction and input are one question, a line end between them; pairs of "history" come before it.
void read_alpaca(const TemplateValue& line, std::string_view where, Conversation& out) {
  const ChatPlace place{where};
  out.form = ChatForm::Alpaca;
  if (const TemplateValue tools = tools_of(line, true, place); !tools.is_none()) out.tools = tools;
  if (const std::string system = optional_text(line, "system", place); !system.empty())
    out.messages.push_back(plain_message("system", system));
  if (const TemplateValue* history = line.member("history"); history && !history->is_none()) {
    if (!history->list()) place.fail("\"history\" holds {}; a list of pairs is needed", kind_of(*history));
    for (const TemplateValue& pair : *history->list()) {
      if (!pair.list() || pair.list()->size() != 2)
        place.fail("\"history\" holds something else than pairs of question and answer");
      out.messages.push_back(plain_message("user", text_of(pair.list()->at(0), "history", place)));
      out.messages.push_back(plain_message("assistant", text_of(pair.list()->at(1), "history", place)));
    }
  }
  std::string question = text_of(*line.member("instruction"), "instruction", place);
  if (const std::string input = optional_text(line, "input", place); !input.empty())
    question += (question.empty() ? "" : "\n") + input;
  if (question.empty()) place.fail("\"instruction\" and \"input\" are empty; a question is needed");
  out.messages.push_back(plain_message("user", question));
  out.messages.push_back(plain_message("assistant", text_of(*line.member("output"), "output", place)));
}

// Only the completion counts, also where the prompt holds earlier answers.
void read_prompt_completion(const TemplateValue& line, std::string_view where, Conversation& out) {
  const ChatPlace place{where};
  out.form = ChatForm::PromptCompletion;
  out.tools = tools_of(line, false, place);
  if (const TemplateValue* label = line.member("label"); label && !label->is_none())
    place.fail(
        "\"label\" says whether an answer is good, which is not learned; leave out the line or the "
        "member");
  const TemplateValue &prompt = *line.member("prompt"), &completion = *line.member("completion");
  if (prompt.list())
    add_list(prompt, "prompt", where, out);
  else
    out.messages.push_back(plain_message("user", text_of(prompt, "prompt", place)));
  for (ChatMessage& message : out.messages)
    if (!message.counts) message.counts = false;
  if (completion.list())
    add_list(completion, "completion", where, out);
  else
    out.messages.push_back(plain_message("assistant", text_of(completion, "completion", place)));
}

}  // namespace pleat::data
