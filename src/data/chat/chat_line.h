// One line of chat JSONL as a conversation. Four forms are told apart by the members of the line:
//
//   {"messages": [{"role": "user", "content": "..."}, ...], "tools": [...]}      OpenAI
//   {"conversations": [{"from": "human", "value": "..."}, ...]}                  ShareGPT
//   {"instruction": "...", "input": "...", "output": "..."}                      Alpaca
//   {"prompt": "...", "completion": "..."}, or a list of messages in both        prompt and completion
//
// Strict where leaving something out would change what is learned: a member of a message, a kind of part or
// a role that is not known is refused by name. Further members of the line itself (an id, a source) are not
// looked at. docs/data.md lists what each form may hold.
#pragma once

#include <string_view>

#include "data/chat/conversation.h"

namespace pleat::data {

// Throws, with `where` (file and line) in front and the number of the message where there is one, when the
// line is broken JSON, past the bounds of json_value.h, or no conversation of at least one message.
Conversation conversation_from_json(std::string_view line, std::string_view where);

}  // namespace pleat::data
