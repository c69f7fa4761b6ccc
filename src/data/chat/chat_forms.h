// How each form of a line becomes messages; chat_line.cpp chooses. Values are taken from a line that was read
// in bounds, so what is built here is bounded too.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "data/chat/conversation.h"

namespace pleat::data {

// Where a fault is: file and line, and the message where there is one.
struct ChatPlace {
  std::string_view where;
  size_t message = 0;  // from 1; 0: the line itself

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    const std::string what = fmt::format(format, std::forward<Args>(args)...);
    if (message == 0) base::fail("{}: {}", where, what);
    base::fail("{}: message {}: {}", where, message, what);
  }
};

// The text under `name` of a map; throws when it is something else.
std::string text_of(const TemplateValue& value, std::string_view name, const ChatPlace& place);
// A message of nothing but role and content.
ChatMessage plain_message(std::string role, std::string content);
// "weight": 1 or 0.
bool weight_of(const TemplateValue& value, const ChatPlace& place);
// A member that no form knows.
[[noreturn]] void fail_unknown(std::string_view name, std::string_view known, const ChatPlace& place);

// One message with role and content.
ChatMessage openai_message(const TemplateValue& given, const ChatPlace& place);
// {"name": ..., "arguments": ...} as an element of "tool_calls".
TemplateValue tool_call_of(const TemplateValue& function, const ChatPlace& place);
// "tools" (a list, or a string that holds one as JSON) or the older "functions" of a line, as "tools"; none
// where there is neither, or nothing in it.
TemplateValue tools_of(const TemplateValue& line, bool wrap_bare, const ChatPlace& place);

void read_openai(const TemplateValue& line, const TemplateValue& messages, std::string_view where,
                 Conversation& out);
void read_sharegpt(const TemplateValue& line, const TemplateValue& turns, std::string_view where,
                   Conversation& out);
void read_alpaca(const TemplateValue& line, std::string_view where, Conversation& out);
void read_prompt_completion(const TemplateValue& line, std::string_view where, Conversation& out);

}  // namespace pleat::data
