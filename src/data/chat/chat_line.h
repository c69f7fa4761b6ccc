// One line of chat JSONL: {"messages": [{"role": "user", "content": "..."}, ...]}.
//
// Strict where leaving something out would change what is learned: a message has a role, a content and
// perhaps a weight, and nothing else (tool calls, lists of parts and names are refused by name). Further
// members of the line itself (an id, a source) are not looked at, except "tools" and "functions", which
// belong to the prompt and are refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pleat::data {

struct ChatMessage {
  std::string role = {};
  std::string content = {};
  std::optional<bool> counts = {};  // "weight": 1 or 0 in the loss; nothing: as the role says
};

// Throws, with `where` (file and line) in front and the number of the message where there is one, when the
// line is broken JSON, nests deeper than kMaxJsonDepth, or is no conversation of at least one message.
std::vector<ChatMessage> chat_from_json(std::string_view line, std::string_view where);

}  // namespace pleat::data
