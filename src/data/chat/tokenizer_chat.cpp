// How a conversation is rendered and encoded; turn_spans.cpp finds what counts.
#include "data/chat/tokenizer_chat.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

// Spelled like a control token, whether or not its file flags it special (DeepSeek's <｜User｜> is not).
bool looks_like_control(std::string_view spelling) {
  return (spelling.starts_with("<|") && spelling.ends_with("|>")) ||
         (spelling.starts_with("<｜") && spelling.ends_with("｜>"));
}

// The fields transformers takes for the reasoning of a message, in its order; it gives templates all of them.
TemplateValue with_reasoning(TemplateValue message) {
  TemplateValue::Map* map = message.map();
  const TemplateValue* found = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"})
    if (const TemplateValue* value = message.member(name);
        found == nullptr && value != nullptr && !value->is_none())
      found = value;
  if (found == nullptr) return message;
  const TemplateValue reasoning = *found;
  TemplateValue::Map out = {{"thinking", reasoning}};
  const auto set = [&](const std::string& name, const TemplateValue& value) {
    for (auto& member : out)
      if (member.first == name) {
        member.second = value;
        return;
      }
    out.emplace_back(name, value);
  };
  for (const auto& [name, value] : *map) set(name, value);
  set("reasoning_content", reasoning);
  return out;
}

template <class Run>
auto with_place(std::string_view where, const Run& run) {
  try {
    return run();
  } catch (const base::Error& error) {
    base::fail("{}: {}", where, error.what());
  }
}

}  // namespace

TokenizerChat::TokenizerChat(const TextTokenizer& tokenizer, TokenizerChatOptions options)
    : tokenizer_(tokenizer), options_(std::move(options)), placer_(tokenizer) {
  if (tokenizer.kind() == "byte")
    base::fail(
        "chat.template = \"tokenizer\" needs a tokenizer folder with a chat template; data.tokenizer is "
        "\"byte\"");
  if (tokenizer.kind() == "sentencepiece")
    base::fail(
        "{}: the chat template of a SentencePiece model is not supported, because its special tokens are "
        "found by other rules; a folder with tokenizer.json is needed",
        tokenizer.name());
  folder_ = read_folder_templates(tokenizer.name());
  for (const NamedTemplate& t : folder_.templates)
    programs_.emplace_back(t.name, ChatProgram(t.source, t.where));
  added_ = tokenizer.special_tokens();
  std::erase_if(added_, [](const SpecialToken& t) { return t.spelling.empty(); });
  std::stable_sort(added_.begin(), added_.end(), [](const SpecialToken& a, const SpecialToken& b) {
    return a.spelling.size() > b.spelling.size();
  });
  for (const SpecialToken& token : added_) {
    starts_[static_cast<unsigned char>(token.spelling[0])] = true;
    const std::vector<int32_t> plain =
        tokenizer.encode(token.spelling, EncodeOptions{.find_special_tokens = false});
    const bool special = plain != std::vector<int32_t>{token.id};
    if (special || looks_like_control(token.spelling)) protected_.push_back(token.id);
  }
  if (tokenizer.has_end_of_document()) protected_.push_back(tokenizer.end_of_document());
  std::sort(protected_.begin(), protected_.end());
  find_end_of_answer();
}

const ChatProgram& TokenizerChat::program_for(const Conversation& conversation,
                                              std::string_view where) const {
  const auto named = [&](std::string_view name) -> const ChatProgram* {
    for (const auto& [known, program] : programs_)
      if (known == name) return &program;
    return nullptr;
  };
  if (!conversation.tools.is_none())
    if (const ChatProgram* program = named("tool_use")) return *program;
  if (const ChatProgram* program = named("default")) return *program;
  std::vector<std::string> names;
  for (const auto& program : programs_) names.push_back(shown(program.first, 40));
  base::fail("{}: the tokenizer has the chat templates {}, and none of them is the default", where,
             fmt::join(names, ", "));
}

TemplateInput TokenizerChat::input_of(const Conversation& conversation) const {
  TemplateInput input;
  for (const auto& [name, token] : folder_.special_tokens) input.set(name, token, false);
  input.set("tools", conversation.tools, true);
  input.set("documents", {}, true);
  for (const auto& [name, value] : options_.variables) input.set(name, value, true);
  for (const ChatMessage& message : conversation.messages)
    input.add_message(with_reasoning(message_value(message)));
  return input;
}

int64_t TokenizerChat::now() const {
  return options_.now ? *options_.now : static_cast<int64_t>(std::time(nullptr));
}

std::vector<TokenizerChat::Spelled> TokenizerChat::spelled_in(const TracedText& text) const {
  std::vector<Spelled> out;
  const std::string_view bytes = text.bytes();
  for (size_t at = 0; at < bytes.size();) {
    if (!starts_[static_cast<unsigned char>(bytes[at])]) {
      ++at;
      continue;
    }
    const auto found = std::find_if(added_.begin(), added_.end(), [&](const SpecialToken& token) {
      return bytes.substr(at).starts_with(token.spelling);
    });
    if (found == added_.end()) {
      ++at;
      continue;
    }
    out.push_back({at, at + found->spelling.size(), found->id, true});
    at = out.back().end;
  }
  // Written by people only where no character of it is the template's.
  size_t at = 0;
  text.for_each_run([&](size_t begin, size_t end, TextMark mark) {
    while (at < out.size() && out[at].end <= begin) ++at;
    if (mark.source != TextMark::kTemplate) return;
    for (size_t i = at; i < out.size() && out[i].begin < end; ++i) out[i].by_people = false;
  });
  return out;
}

TokenizerChat::Encoded TokenizerChat::encode_text(const TracedText& text, bool with_places,
                                                  std::string_view where) const {
  Encoded out;
  const std::string_view bytes = text.bytes();
  const auto add = [&](size_t begin, size_t end, bool plain) {
    if (begin == end) return;
    const std::string_view part = bytes.substr(begin, end - begin);
    EncodeOptions options;
    if (plain) options = {.find_special_tokens = false, .never = protected_};
    std::vector<int32_t> ids = tokenizer_.encode(part, options);
    if (begin > 0) {
      // Some tokenizers begin a text with a blank of their own; behind a line end they do not.
      const std::vector<int32_t> line = tokenizer_.encode("\n", options);
      std::vector<int32_t> behind = tokenizer_.encode("\n" + std::string(part), options);
      if (behind.size() >= line.size() && std::equal(line.begin(), line.end(), behind.begin()))
        ids.assign(behind.begin() + static_cast<ptrdiff_t>(line.size()), behind.end());
    }
    if (plain)
      for (const int32_t id : ids)
        if (std::binary_search(protected_.begin(), protected_.end(), id))
          base::fail(
              "{}: a message spells the special token \"{}\", and tokenizer {} cannot write that as plain "
              "text",
              where, shown(part, 40), shown(tokenizer_.name(), 80));
    if (with_places)
      for (TokenPlace place : placer_.places(part, ids)) {
        place.begin += begin;
        place.end += begin;
        out.places.push_back(place);
      }
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  };
  size_t done = 0;
  for (const Spelled& token : spelled_in(text)) {
    if (!token.by_people || !std::binary_search(protected_.begin(), protected_.end(), token.id)) continue;
    add(done, token.begin, false);
    add(token.begin, token.end, true);
    done = token.end;
  }
  add(done, bytes.size(), false);
  return out;
}

std::string TokenizerChat::render(const Conversation& conversation, bool add_generation_prompt,
                                  std::string_view where) const {
  return with_place(where, [&] {
    return program_for(conversation, where)
        .render(input_of(conversation), conversation.messages.size(), add_generation_prompt, now())
        .bytes();
  });
}

std::vector<int32_t> TokenizerChat::encode_prompt(const Conversation& conversation,
                                                  std::string_view where) const {
  const TracedText text = with_place(where, [&] {
    return program_for(conversation, where)
        .render(input_of(conversation), conversation.messages.size(), true, now());
  });
  return encode_text(text, false, where).ids;
}

EncodedChat TokenizerChat::encode(const Conversation& conversation, std::string_view where) const {
  const ChatProgram& program = program_for(conversation, where);
  const TemplateInput input = input_of(conversation);
  const int64_t time = now();
  const TracedText text =
      with_place(where, [&] { return program.render(input, input.num_messages(), false, time); });
  Encoded encoded = encode_text(text, true, where);
  EncodedChat out;
  const std::vector<Span> counted = spans(program, input, conversation, text, time, out.end_counts, where);
  out.loss_mask.reserve(encoded.ids.size());
  for (const TokenPlace& place : encoded.places) {
    const auto span = std::find_if(counted.begin(), counted.end(),
                                   [&](const Span& s) { return s.begin < place.end && place.begin < s.end; });
    const bool counts = span != counted.end();
    if (counts && !place.certain && (place.begin < span->begin || place.end > span->end))
      base::fail(
          "{}: the tokenizer changes the characters where an answer begins or ends, so that its tokens "
          "cannot "
          "be told from those around it",
          where);
    out.loss_mask.push_back(counts ? 1 : 0);
  }
  out.tokens = std::move(encoded.ids);
  return out;
}

}  // namespace pleat::data
