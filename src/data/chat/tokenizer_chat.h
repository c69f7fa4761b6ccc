// Conversations written by the chat template of the tokenizer's own folder (Jinja), as transformers'
// apply_chat_template writes them: the whole conversation is rendered as one text, and that is encoded once,
// with special tokens found in it and none added.
//
// What counts in the loss. Where the template has {% generation %}: what stands inside, of messages whose
// weight is not 0. Where it has none: of every assistant message, what a model has to write when it is
// asked for that message, its end included:
//   - The interpreter marks every character with the message whose round of the loop wrote it; that is the
//     turn, also in templates that write old turns differently from the last (reasoning left out, another
//     end).
//   - The start of the turn that the prompt already holds does not count. The prompt is the rendering of the
//     messages before with add_generation_prompt; what it adds is compared with the start of the turn.
//   - The turn counts to the end of its last special token, the one that ends the answer: the model must
//     learn to stop. A line end behind that does not count. Without such a token all of it counts.
// A template that does not write its messages in a loop over them is refused, unless it has {% generation %}.
// A token counts when one of its characters does, as in transformers.
//
// Special tokens. Text that people wrote never becomes a token that is flagged special, that is spelled like
// one (<|...|>) or that ends documents: where content spells one, it is encoded as plain text. There ids
// differ from transformers', which takes it for the token; everywhere else they are the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/conversation.h"
#include "data/chat/template_files.h"
#include "data/chat/token_places.h"
#include "data/template/template.h"
#include "data/tokenizer/text_tokenizer.h"

namespace pleat::data {

struct TokenizerChatOptions {
  // Further variables of the template, such as enable_thinking.
  std::vector<std::pair<std::string, TemplateValue>> variables = {};
  // The time strftime_now() tells, in seconds since 1970; nothing: the time of the call.
  std::optional<int64_t> now = {};
};

class TokenizerChat final : public ConversationEncoder {
 public:
  // The templates beside the tokenizer's file. `tokenizer` must outlive this. Throws where there is none, or
  // what it says is not supported.
  explicit TokenizerChat(const TextTokenizer& tokenizer, TokenizerChatOptions options = {});

  EncodedChat encode(const Conversation& conversation, std::string_view where) const override;
  std::vector<int32_t> encode_prompt(const Conversation& conversation, std::string_view where) const override;
  // The special token a turn of the assistant ends with, found by rendering one.
  std::vector<int32_t> end_of_answer() const override { return end_of_answer_; }

  // The text the template makes.
  std::string render(const Conversation& conversation, bool add_generation_prompt,
                     std::string_view where) const;

 private:
  struct Span {
    size_t begin = 0, end = 0;
  };
  struct Encoded {
    std::vector<int32_t> ids = {};
    std::vector<TokenPlace> places = {};
  };
  // A token of the template's own in a text, or one that people spelled.
  struct Spelled {
    size_t begin = 0, end = 0;
    int32_t id = 0;
    bool by_people = false;
  };

  const ChatProgram& program_for(const Conversation& conversation, std::string_view where) const;
  TemplateInput input_of(const Conversation& conversation) const;
  int64_t now() const;
  // Added tokens spelled in the text, from left to right, the longest first.
  std::vector<Spelled> spelled_in(const TracedText& text) const;
  Encoded encode_text(const TracedText& text, bool with_places, std::string_view where) const;
  std::vector<Span> spans(const ChatProgram& program, const TemplateInput& input,
                          const Conversation& conversation, const TracedText& text, int64_t now,
                          bool& end_counts, std::string_view where) const;
  // What the prompt for message `number` already holds of its turn.
  size_t header(const ChatProgram& program, const TemplateInput& input, size_t number, const TracedText& text,
                Span turn, int64_t now, std::string_view where) const;
  size_t end_of_turn(const std::vector<Spelled>& spelled, const TracedText& text, Span turn, size_t begin,
                     bool& has_end) const;
  void find_end_of_answer();

  const TextTokenizer& tokenizer_;
  TokenizerChatOptions options_;
  FolderTemplates folder_;
  std::vector<std::pair<std::string, ChatProgram>> programs_;
  TokenPlacer placer_;
  std::vector<SpecialToken> added_;  // the longest first
  std::vector<int32_t> protected_;   // sorted
  bool starts_[256] = {};            // bytes an added token starts with
  std::vector<int32_t> end_of_answer_;
};

}  // namespace pleat::data
