// Messages with role and content, and what else OpenAI lets them hold.
#include <algorithm>
#include <initializer_list>

#include "data/chat/chat_forms.h"
#include "data/chat/json_value.h"
#include "data/json_error.h"

namespace pleat::data {
namespace {

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The texts of a list of parts, one after the other.
std::string text_of_parts(const TemplateValue::List& parts, const ChatPlace& place) {
  if (parts.empty()) place.fail("\"content\" is an empty list; text or parts are needed");
  std::string text;
  for (const TemplateValue& part : parts) {
    if (!part.map()) place.fail("a part of \"content\" is {}; an object is needed", kind_of(part));
    const TemplateValue* type = part.member("type");
    if (!type || !type->text()) place.fail("a part of \"content\" has no \"type\"");
    if (*type->text() != "text")
      place.fail("a part of type \"{}\" is not supported; only \"text\" can be learned",
                 printable_json(*type->text(), 40));
    const TemplateValue* own = part.member("text");
    if (!own || !own->text()) place.fail("a part of type \"text\" has no \"text\"");
    for (const auto& [name, value] : *part.map())
      if (!value.is_none() && name != "type" && name != "text")
        place.fail("\"{}\" in a part of \"content\" is not supported", printable_json(name, 40));
    text += *own->text();
  }
  return text;
}

void check_function(const TemplateValue& function, const ChatPlace& place) {
  if (!function.map()) place.fail("a tool call is {}; an object is needed", kind_of(function));
  const TemplateValue* name = function.member("name");
  const TemplateValue* arguments = function.member("arguments");
  if (!name || !name->text()) place.fail("a tool call has no \"name\"");
  if (!arguments || !(arguments->text() || arguments->map()))
    place.fail("the \"arguments\" of a tool call are {}; an object, or a string that holds one, is needed",
               arguments ? kind_of(*arguments) : "missing");
}

// A call as given; the function may stand in it, or be it.
void check_tool_call(const TemplateValue& call, const ChatPlace& place) {
  if (!call.map()) place.fail("a tool call is {}; an object is needed", kind_of(call));
  const TemplateValue* function = call.member("function");
  check_function(function ? *function : call, place);
  for (const auto& [name, value] : *call.map()) {
    if (name == "type" && (!value.text() || *value.text() != "function"))
      place.fail("a tool call has another \"type\" than \"function\"");
    if (!is_one_of(name, {"id", "type", "index"}) &&
        !(function ? name == "function" : is_one_of(name, {"name", "arguments"})))
      place.fail("\"{}\" in a tool call is not supported", printable_json(name, 40));
  }
}

}  // namespace

std::string text_of(const TemplateValue& value, std::string_view name, const ChatPlace& place) {
  if (!value.text()) place.fail("\"{}\" holds {}; a string is needed", name, kind_of(value));
  return *value.text();
}

bool weight_of(const TemplateValue& value, const ChatPlace& place) {
  if (!value.integer()) place.fail("\"weight\" holds {}; 0 or 1 is needed", kind_of(value));
  if (*value.integer() != 0 && *value.integer() != 1)
    place.fail("\"weight\" is {}; needed is 0 or 1", *value.integer());
  return *value.integer() == 1;
}

void fail_unknown(std::string_view name, std::string_view known, const ChatPlace& place) {
  place.fail("\"{}\" is not supported; a message may have {}", printable_json(name, 40), known);
}

ChatMessage plain_message(std::string role, std::string content) {
  ChatMessage m{.role = std::move(role), .content = std::move(content)};
  m.whole = TemplateValue::Map{{"role", m.role}, {"content", m.content}};
  return m;
}

TemplateValue tool_call_of(const TemplateValue& function, const ChatPlace& place) {
  check_function(function, place);
  return TemplateValue::Map{{"type", "function"}, {"function", function}};
}

ChatMessage openai_message(const TemplateValue& given, const ChatPlace& place) {
  if (!given.map())
    base::fail("{}: message {} is {}; an object with \"role\" and \"content\" is needed", place.where,
               place.message, kind_of(given));
  ChatMessage m;
  TemplateValue::Map whole;
  bool has_content = false, has_more = false, has_calls = false;
  for (const auto& [name, value] : *given.map()) {
    if (name == "role") {
      m.role = text_of(value, name, place);
      if (m.role.empty()) place.fail("\"role\" is empty");
      if (m.role == "function") m.role = "tool";  // its older name
      whole.emplace_back(name, m.role);
    } else if (name == "content") {
      if (value.list())
        m.content = text_of_parts(*value.list(), place);
      else if (!value.is_none())
        m.content = text_of(value, name, place);
      has_content = !value.is_none();
      whole.emplace_back(name, value.is_none() ? TemplateValue() : TemplateValue(m.content));
    } else if (is_one_of(name, {"id", "timestamp"})) {
      continue;
    } else if (name == "weight") {
      if (!value.is_none()) m.counts = weight_of(value, place);
    } else if (is_one_of(name, {"name", "tool_call_id", "reasoning_content", "thinking"})) {
      if (value.is_none()) continue;
      whole.emplace_back(name, text_of(value, name, place));
      has_more |= is_one_of(name, {"reasoning_content", "thinking"});
    } else if (name == "tool_calls") {
      if (value.is_none() || (value.list() && value.list()->empty())) continue;
      if (!value.list()) place.fail("\"tool_calls\" holds {}; a list is needed", kind_of(value));
      for (const TemplateValue& call : *value.list()) check_tool_call(call, place);
      whole.emplace_back(name, value);
      has_calls = true;
    } else if (name == "function_call") {
      if (value.is_none()) continue;
      whole.emplace_back("tool_calls", TemplateValue::List{tool_call_of(value, place)});
      has_calls = true;
    } else if (is_one_of(name, {"refusal", "audio", "annotations"}) &&
               (value.is_none() || (value.list() && value.list()->empty()))) {
      continue;  // what a stored answer holds where there was none
    } else {
      fail_unknown(name,
                   "role, content, weight, name, tool_calls, tool_call_id, reasoning_content and thinking",
                   place);
    }
  }
  if (m.role.empty()) place.fail("\"role\" is missing");
  if (given.member("tool_calls") && given.member("function_call") && has_calls)
    place.fail("\"tool_calls\" and \"function_call\" are both there; one is needed");
  if (has_calls && m.role != "assistant")
    place.fail("\"tool_calls\" stand in a message of role \"{}\"; only the assistant calls tools",
               printable_json(m.role, 40));
  if (!has_content && !has_calls && !has_more)
    place.fail("\"content\" is {}; text is needed where there are no \"tool_calls\"",
               given.member("content") ? "null" : "missing");
  m.whole = std::move(whole);
  return m;
}

TemplateValue tools_of(const TemplateValue& line, bool wrap_bare, const ChatPlace& place) {
  const auto given = [&](const char* name) {
    const TemplateValue* value = line.member(name);
    return value && !value->is_none() ? value : nullptr;
  };
  const TemplateValue *tools = given("tools"), *functions = given("functions");
  if (tools && functions) place.fail("\"tools\" and \"functions\" are both there; one is needed");
  if (!tools && !functions) return {};
  const char* name = tools ? "tools" : "functions";
  TemplateValue value = tools ? *tools : *functions;
  if (value.text()) {
    if (value.text()->find_first_not_of(" \t\r\n") == std::string::npos) return {};
    value = value_from_json(std::string(*value.text()), fmt::format("{}: \"{}\"", place.where, name));
  }
  if (!value.list()) place.fail("\"{}\" holds {}; a list of tools is needed", name, kind_of(value));
  if (value.list()->empty()) return {};
  for (TemplateValue& tool : *value.list()) {
    if (!tool.map()) place.fail("\"{}\" holds {} in its list; an object is needed", name, kind_of(tool));
    if ((functions || wrap_bare) && !tool.member("function"))
      tool = TemplateValue::Map{{"type", "function"}, {"function", std::move(tool)}};
  }
  return value;
}

void read_openai(const TemplateValue& line, const TemplateValue& messages, std::string_view where,
                 Conversation& out) {
  out.form = ChatForm::OpenAi;
  out.tools = tools_of(line, false, {where});
  for (const TemplateValue& message : *messages.list())
    out.messages.push_back(openai_message(message, {where, out.messages.size() + 1}));
}

}  // namespace pleat::data
