#include "data/template/template.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/error.h"
#include "data/template/evaluator.h"
#include "data/template/parser.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {

struct TemplateInput::Held {
  std::vector<std::pair<std::string, jinja::Value>> variables = {};
  std::vector<jinja::Value> messages = {};
  std::shared_ptr<std::atomic<int64_t>> steps = std::make_shared<std::atomic<int64_t>>(0);  // of renderings
};

struct ChatProgram::Held {
  std::string name;
  TemplateLimits limits;
  jinja::ParsedTemplate parsed;
};

namespace {

// Input is not held to the limits on nesting of what the template puts together: whoever read it has.
constexpr int kMaxInputNesting = 200;

jinja::Value template_text(std::string_view bytes, TextMark mark) {
  std::string replaced;
  return std::make_shared<const TracedText>(std::string(as_valid_utf8(bytes, replaced)), mark);
}

bool is_word(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

jinja::Value to_value(const TemplateValue& value, TextMark mark, int level, int32_t message = -1) {
  if (level > kMaxInputNesting) base::fail("a message or tool nests deeper than {} levels", kMaxInputNesting);
  if (const bool* b = value.boolean()) return *b;
  if (const int64_t* i = value.integer()) return *i;
  if (const double* d = value.real()) return *d;
  if (const std::string* text = value.text()) return template_text(*text, mark);
  if (const TemplateValue::List* list = value.list()) {
    auto out = std::make_shared<jinja::List>();
    for (const TemplateValue& item : *list) out->items.push_back(to_value(item, mark, level + 1));
    return out;
  }
  if (const TemplateValue::Map* map = value.map()) {
    auto out = std::make_shared<jinja::Dict>();
    out->message = message;
    for (const auto& [key, item] : *map)
      out->items.emplace_back(template_text(key, mark), to_value(item, mark, level + 1));
    return out;
  }
  return {};
}

}  // namespace

TemplateInput::TemplateInput() : held_(std::make_unique<Held>()) {}
TemplateInput::~TemplateInput() = default;
TemplateInput::TemplateInput(TemplateInput&&) noexcept = default;

void TemplateInput::set(const std::string& name, const TemplateValue& value, bool is_data) {
  held_->variables.emplace_back(
      name, to_value(value, {.source = is_data ? TextMark::kOther : TextMark::kTemplate}, 0));
}

void TemplateInput::add_message(const TemplateValue& message) {
  const auto number = static_cast<int32_t>(held_->messages.size());
  jinja::Value value = to_value(message, {.source = number}, 0, number);
  // A role that is a plain word says nothing of its own: templates write "<|" + role + "|>".
  if (jinja::Dict* dict = value.dict())
    for (auto& [key, item] : dict->items)
      if (key.text()->bytes() == "role" && item.text() != nullptr && is_word(item.text()->bytes()))
        item = template_text(std::string(item.text()->bytes()), {});
  held_->messages.push_back(std::move(value));
}

size_t TemplateInput::num_messages() const { return held_->messages.size(); }

void TemplateInput::spend_with(const TemplateInput& other) { held_->steps = other.held_->steps; }
bool TemplateInput::is_spent(const TemplateLimits& limits) const {
  return held_->steps->load() > limits.conversation_steps;
}

ChatProgram::ChatProgram(std::string_view source, std::string name, const TemplateLimits& limits)
    : held_(std::make_unique<Held>()) {
  held_->name = std::move(name);
  held_->limits = limits;
  held_->parsed = jinja::Parser(source, held_->name, held_->limits).run();
}
ChatProgram::~ChatProgram() = default;
ChatProgram::ChatProgram(ChatProgram&&) noexcept = default;

const std::string& ChatProgram::name() const { return held_->name; }
bool ChatProgram::marks_generation() const { return held_->parsed.marks_generation; }

TracedText ChatProgram::render(const TemplateInput& input, size_t num_messages, bool add_generation_prompt,
                               int64_t now) const {
  std::atomic<int64_t>& spent = *input.held_->steps;
  jinja::Evaluator evaluator(held_->name, held_->limits, now, spent.load());
  struct Count {  // also where it throws
    const jinja::Evaluator& evaluator;
    std::atomic<int64_t>& spent;
    ~Count() { spent += evaluator.steps(); }
  } const count{evaluator, spent};
  for (const auto& [name, value] : input.held_->variables) evaluator.set(name, value);
  auto messages = std::make_shared<jinja::List>();
  const auto& all = input.held_->messages;
  messages->items.assign(all.begin(), all.begin() + static_cast<ptrdiff_t>(num_messages));
  evaluator.set("messages", messages);
  evaluator.set("add_generation_prompt", add_generation_prompt);
  return evaluator.run(held_->parsed);
}

}  // namespace pleat::data
