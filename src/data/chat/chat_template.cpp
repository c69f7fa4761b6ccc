#include "data/chat/chat_template.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "data/json_error.h"

namespace pleat::data {
namespace {

constexpr const char* kRoles[] = {"system", "user", "assistant", "tool"};

ChatTemplate chatml() {
  ChatTemplate t;
  for (const char* role : kRoles) t.roles[role] = {fmt::format("<|im_start|>{}\n", role), "<|im_end|>\n"};
  t.needs = {"<|im_start|>", "<|im_end|>"};
  return t;
}

ChatTemplate llama3() {
  ChatTemplate t;
  t.begin = "<|begin_of_text|>";
  for (const char* role : kRoles) {
    const char* written = std::string_view(role) == "tool" ? "ipython" : role;
    t.roles[role] = {fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", written), "<|eot_id|>"};
  }
  t.needs = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
  return t;
}

ChatTemplate plain() {
  ChatTemplate t;
  t.roles = {{"system", {"System: ", "\n"}},
             {"user", {"User: ", "\n"}},
             {"assistant", {"Assistant: ", "\n"}},
             {"tool", {"Tool: ", "\n"}}};
  return t;
}

}  // namespace

ChatTemplate chat_preset(std::string_view name) {
  ChatTemplate t;
  if (name == "chatml")
    t = chatml();
  else if (name == "llama3")
    t = llama3();
  else if (name == "plain")
    t = plain();
  else if (name != "tokenizer")
    base::fail("\"{}\" is no chat template; known are chatml, llama3, plain and tokenizer",
               printable_json(name, 40));
  t.name = name;
  return t;
}

ChatEncoder::ChatEncoder(const ChatTemplate& chat_template, const TextTokenizer& tokenizer)
    : name_(chat_template.name), tokenizer_(tokenizer), special_tokens_(tokenizer.special_tokens()) {
  for (const std::string& token : chat_template.needs) {
    const auto id = tokenizer.id_of(token);
    if (!id)
      base::fail("chat template {} needs the token \"{}\", which tokenizer {} does not have",
                 chat_template.name, token, tokenizer.name());
    // SentencePiece does not list its user-defined symbols.
    if (std::none_of(special_tokens_.begin(), special_tokens_.end(),
                     [&](const SpecialToken& t) { return t.id == *id; }))
      special_tokens_.push_back({token, *id});
  }
  // At each place the longest spelling wins.
  std::stable_sort(
      special_tokens_.begin(), special_tokens_.end(),
      [](const SpecialToken& a, const SpecialToken& b) { return a.spelling.size() > b.spelling.size(); });
  begin_ = encode_template(chat_template.begin);
  end_ = encode_template(chat_template.end);
  for (const auto& [name, role] : chat_template.roles)
    roles_.emplace(name, Role{encode_template(role.prefix), encode_template(role.suffix)});
  if (const auto assistant = chat_template.roles.find("assistant"); assistant != chat_template.roles.end())
    for (const SpecialToken& token : special_tokens_)
      if (!token.spelling.empty() && assistant->second.suffix.starts_with(token.spelling)) {
        end_of_answer_ = {token.id};
        break;
      }
  if (tokenizer.has_end_of_document()) never_.push_back(tokenizer.end_of_document());
  std::sort(never_.begin(), never_.end());
  never_.erase(std::unique(never_.begin(), never_.end()), never_.end());
}

std::vector<int32_t> ChatEncoder::encode_template(std::string_view text) {
  std::vector<int32_t> ids;
  size_t done = 0;
  const auto plain_until = [&](size_t end) {
    if (end == done) return;
    const std::vector<int32_t> part =
        tokenizer_.encode(text.substr(done, end - done), EncodeOptions{.find_special_tokens = false});
    ids.insert(ids.end(), part.begin(), part.end());
  };
  for (size_t at = 0; at < text.size();) {
    const auto found =
        std::find_if(special_tokens_.begin(), special_tokens_.end(), [&](const SpecialToken& token) {
          return !token.spelling.empty() && text.substr(at).starts_with(token.spelling);
        });
    if (found == special_tokens_.end()) {
      ++at;
      continue;
    }
    plain_until(at);
    ids.push_back(found->id);
    never_.push_back(found->id);
    at += found->spelling.size();
    done = at;
  }
  plain_until(text.size());
  return ids;
}

EncodedChat ChatEncoder::encode_messages(const Conversation& conversation, std::string_view where) const {
  const std::vector<ChatMessage>& messages = conversation.messages;
  const auto cannot = [&](const std::string& place, std::string_view what) {
    base::fail(
        "{}: {}: chat template {} has no words for it; chat.template = \"tokenizer\" (--chat tokenizer) uses "
        "the tokenizer's own",
        place, what, name_);
  };
  if (!conversation.tools.is_none()) cannot(std::string(where), "the line has \"tools\"");
  EncodedChat out;
  const auto add = [&](const std::vector<int32_t>& ids, bool counts) {
    out.tokens.insert(out.tokens.end(), ids.begin(), ids.end());
    out.loss_mask.insert(out.loss_mask.end(), ids.size(), counts ? 1 : 0);
  };
  add(begin_, false);
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    for (const char* member : {"tool_calls", "reasoning_content", "thinking", "name"})
      if (message.whole.member(member))
        cannot(fmt::format("{}: message {}", where, i + 1), fmt::format("\"{}\"", member));
    auto role = roles_.find(message.role);
    if (role == roles_.end() && message.role == "developer") role = roles_.find("system");
    if (role == roles_.end()) {
      std::vector<std::string> known;
      for (const auto& entry : roles_) known.push_back(entry.first);
      base::fail("{}: message {}: the template has no role \"{}\"; known are {}", where, i + 1,
                 printable_json(message.role, 40), fmt::join(known, ", "));
    }
    const bool counts = message.counts.value_or(message.role == "assistant");
    add(role->second.prefix, false);
    const std::vector<int32_t> content =
        tokenizer_.encode(message.content, EncodeOptions{.find_special_tokens = false, .never = never_});
    for (const int32_t id : content)
      if (std::binary_search(never_.begin(), never_.end(), id))
        base::fail(
            "{}: message {}: the content spells a special token of the template (id {}), and tokenizer {} "
            "cannot write that as plain text",
            where, i + 1, id, printable_json(tokenizer_.name(), 80));
    add(content, counts);
    add(role->second.suffix, counts);
    out.end_counts = counts;
  }
  return out;
}

EncodedChat ChatEncoder::encode(const Conversation& conversation, std::string_view where) const {
  EncodedChat out = encode_messages(conversation, where);
  out.tokens.insert(out.tokens.end(), end_.begin(), end_.end());
  out.loss_mask.insert(out.loss_mask.end(), end_.size(), out.end_counts ? 1 : 0);
  return out;
}

std::vector<int32_t> ChatEncoder::encode_prompt(const Conversation& conversation,
                                                std::string_view where) const {
  std::vector<int32_t> tokens = encode_messages(conversation, where).tokens;
  const auto assistant = roles_.find("assistant");
  if (assistant == roles_.end()) base::fail("{}: chat template {} has no role \"assistant\"", where, name_);
  tokens.insert(tokens.end(), assistant->second.prefix.begin(), assistant->second.prefix.end());
  return tokens;
}

}  // namespace pleat::data
