// Turns with from and value, as ShareGPT stores them, with tool calls as LLaMA-Factory writes them: a turn
// "function_call" holds {"name", "arguments"} as JSON, or a list of these; "observation" is what a tool said.
#include "data/chat/chat_forms.h"
#include "data/chat/json_value.h"
#include "data/json_error.h"

namespace pleat::data {
namespace {

constexpr std::pair<std::string_view, const char*> kSpeakers[] = {{"human", "user"},
                                                                  {"user", "user"},
                                                                  {"gpt", "assistant"},
                                                                  {"chatgpt", "assistant"},
                                                                  {"assistant", "assistant"},
                                                                  {"model", "assistant"},
                                                                  {"system", "system"},
                                                                  {"developer", "developer"},
                                                                  {"tool", "tool"},
                                                                  {"observation", "tool"},
                                                                  {"function_response", "tool"}};

TemplateValue calls_of(const std::string& text, const ChatPlace& place) {
  const TemplateValue value =
      value_from_json(text, fmt::format("{}: message {}: function_call", place.where, place.message));
  TemplateValue::List calls;
  if (value.list())
    for (const TemplateValue& one : *value.list()) calls.push_back(tool_call_of(one, place));
  else
    calls.push_back(tool_call_of(value, place));
  if (calls.empty()) place.fail("function_call holds an empty list; a call is needed");
  return calls;
}

ChatMessage turn_of(const TemplateValue& turn, const ChatPlace& place) {
  if (!turn.map())
    base::fail("{}: message {} is {}; an object with \"from\" and \"value\" is needed", place.where,
               place.message, kind_of(turn));
  const TemplateValue *from = turn.member("from"), *value = turn.member("value");
  if (!from) place.fail("\"from\" is missing");
  if (!value) place.fail("\"value\" is missing");
  const std::string speaker = text_of(*from, "from", place);
  const std::string text = text_of(*value, "value", place);
  ChatMessage m;
  if (speaker == "function_call") {
    m.role = "assistant";
    m.whole = TemplateValue::Map{
        {"role", m.role}, {"content", TemplateValue()}, {"tool_calls", calls_of(text, place)}};
  } else {
    for (const auto& [known, role] : kSpeakers)
      if (speaker == known) m = plain_message(role, text);
    if (m.role.empty())
      place.fail(
          "\"from\" is \"{}\"; known are human, gpt, system, tool, function_call, observation and "
          "their other names",
          printable_json(speaker, 40));
  }
  for (const auto& [name, other] : *turn.map()) {
    if (name == "from" || name == "value" || name == "id" || other.is_none()) continue;
    if (name == "weight")
      m.counts = weight_of(other, place);
    else
      fail_unknown(name, "from, value and weight", place);
  }
  return m;
}

}  // namespace

void read_sharegpt(const TemplateValue& line, const TemplateValue& turns, std::string_view where,
                   Conversation& out) {
  out.form = ChatForm::ShareGpt;
  out.tools = tools_of(line, true, {where});
  size_t number = 0;
  for (const TemplateValue& turn : *turns.list()) out.messages.push_back(turn_of(turn, {where, ++number}));
  const TemplateValue* system = line.member("system");
  if (!system || system->is_none()) return;
  const std::string text = text_of(*system, "system", {where});
  if (text.empty()) return;
  if (out.messages.front().role == "system")
    ChatPlace{where}.fail("\"system\" is given, and the first message is the system's too; one is needed");
  out.messages.insert(out.messages.begin(), plain_message("system", text));
}

}  // namespace pleat::data
