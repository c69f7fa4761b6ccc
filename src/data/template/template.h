// A chat template of Hugging Face: the part of Jinja such templates use, run as transformers runs it
// (trim_blocks, lstrip_blocks, loop controls, the generation tag, the immutable sandbox).
//
// docs/chat.md lists what is supported. What is not is refused when the template is parsed, by name and
// line; what only shows when it runs (a method that would change a list, an undefined value that is used)
// throws then, with the line.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "data/template/limits.h"
#include "data/template/traced_text.h"
#include "data/template/value.h"

namespace pleat::data {

// What a template is given, made once and used for several renderings.
class TemplateInput {
 public:
  TemplateInput();
  ~TemplateInput();
  TemplateInput(TemplateInput&&) noexcept;

  // `is_data`: its texts were written by people, and are marked so in the rendering.
  void set(const std::string& name, const TemplateValue& value, bool is_data);
  // One more of `messages`; its texts are marked with its number.
  void add_message(const TemplateValue& message);
  size_t num_messages() const;
  // The steps of both count together, towards the limit of one conversation.
  void spend_with(const TemplateInput& other);
  // Whether renderings took all the steps a conversation has.
  bool is_spent(const TemplateLimits& limits = {}) const;

 private:
  friend class ChatProgram;
  struct Held;
  std::unique_ptr<Held> held_;
};

class ChatProgram {
 public:
  // `name` stands in front of every error, with the line: "NAME:12: ...".
  ChatProgram(std::string_view source, std::string name, const TemplateLimits& limits = {});
  ~ChatProgram();
  ChatProgram(ChatProgram&&) noexcept;

  const std::string& name() const;
  // Whether it says itself, by {% generation %}, what the assistant writes.
  bool marks_generation() const;

  // The rendering of the first `num_messages`. `now` is what strftime_now() tells, in seconds since 1970.
  // Safe to call from several threads.
  TracedText render(const TemplateInput& input, size_t num_messages, bool add_generation_prompt,
                    int64_t now) const;

 private:
  struct Held;
  std::unique_ptr<Held> held_;
};

}  // namespace pleat::data
