// Which characters of a rendered conversation count; tokenizer_chat.h says by what rule.
#include <algorithm>

#include "base/error.h"
#include "data/chat/tokenizer_chat.h"

namespace pleat::data {
namespace {

struct Turn {
  size_t begin = 0, end = 0;
  bool is_there = false, in_pieces = false;
  size_t data_begin = std::string::npos, data_end = 0;  // what is copied from the message itself
  bool copied_elsewhere = false;
};

std::vector<Turn> turns_of(const TracedText& text, size_t num_messages) {
  std::vector<Turn> turns(num_messages);
  text.for_each_run([&](size_t begin, size_t end, TextMark mark) {
    if (mark.turn >= 0) {
      Turn& turn = turns[static_cast<size_t>(mark.turn)];
      if (!turn.is_there) turn.begin = begin;
      turn.in_pieces |= turn.is_there && turn.end != begin;
      turn.is_there = true;
      turn.end = end;
    }
    if (mark.source < 0) return;
    Turn& source = turns[static_cast<size_t>(mark.source)];
    if (mark.source == mark.turn) {
      source.data_begin = std::min(source.data_begin, begin);
      source.data_end = end;
    } else {
      source.copied_elsewhere = true;
    }
  });
  return turns;
}

size_t common_prefix(std::string_view a, std::string_view b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}

// Where the last round of a loop over messages ended.
size_t end_of_turns(const TracedText& text) {
  size_t out = 0;
  text.for_each_run([&](size_t, size_t end, TextMark mark) {
    if (mark.turn >= 0) out = end;
  });
  return out;
}

// The end of the last token or line before `most`.
size_t last_border(std::string_view text, size_t begin, size_t most, size_t token_end) {
  const size_t line = text.substr(begin, most - begin).rfind('\n');
  return std::max(token_end, line == std::string_view::npos ? begin : begin + line + 1);
}

}  // namespace

size_t TokenizerChat::header(const ChatProgram& program, const TemplateInput& input, size_t number,
                             const TracedText& text, Span turn, int64_t now, std::string_view where) const {
  std::vector<std::string> added;  // by the prompt, behind the messages before
  const auto ask = [&](const TemplateInput& given, size_t count) {
    try {
      const TracedText with = program.render(given, count, true, now);
      const TracedText without = program.render(given, count, false, now);
      added.push_back(with.bytes().substr(end_of_turns(with)));
      added.push_back(with.bytes().substr(common_prefix(with.bytes(), without.bytes())));
      return true;
    } catch (const base::Error&) {
      if (given.is_spent()) throw;
      return false;  // some templates do not write every beginning of a conversation
    }
  };
  if (number == 0 || !ask(input, number)) {
    Conversation question;
    question.messages = {{.role = "user", .content = "x"}};
    TemplateInput alone = input_of(question);
    alone.spend_with(input);
    if (!ask(alone, 1))
      base::fail(
          "{}: message {}: the template writes no prompt for it, so its answer cannot be told from it; a "
          "template with {{% generation %}} is needed",
          where, number + 1);
  }
  const std::string_view bytes = text.bytes();
  const std::string_view written = bytes.substr(turn.begin, turn.end - turn.begin);
  size_t lead = turn.end;  // up to the first character people wrote
  text.for_each_run([&](size_t begin, size_t end, TextMark mark) {
    if (end > turn.begin && mark.source != TextMark::kTemplate && lead == turn.end)
      lead = std::max(begin, turn.begin);
  });
  size_t best = turn.begin;
  for (const std::string& prompt : added) {
    if (written.starts_with(prompt)) {
      best = std::max(best, turn.begin + prompt.size());
      continue;
    }
    const size_t same = std::min(turn.begin + common_prefix(written, prompt), lead);
    size_t token_end = turn.begin;
    for (const Spelled& token : spelled_in(text.slice(turn.begin, same))) token_end = turn.begin + token.end;
    best = std::max(best, last_border(bytes, turn.begin, same, token_end));
  }
  return std::min(best, turn.end);
}

size_t TokenizerChat::end_of_turn(const std::vector<Spelled>& spelled, const TracedText& text, Span turn,
                                  size_t begin, bool& has_end) const {
  size_t written_to = begin;  // by people
  text.for_each_run([&](size_t from, size_t to, TextMark mark) {
    if (from < turn.end && to > turn.begin && mark.source != TextMark::kTemplate)
      written_to = std::max(written_to, std::min(to, turn.end));
  });
  has_end = false;
  size_t end = turn.end;
  for (const Spelled& token : spelled)
    if (token.begin >= written_to && token.end <= turn.end && !token.by_people) {
      has_end = true;
      end = token.end;
    }
  return end;
}

std::vector<TokenizerChat::Span> TokenizerChat::spans(const ChatProgram& program, const TemplateInput& input,
                                                      const Conversation& conversation,
                                                      const TracedText& text, int64_t now, bool& end_counts,
                                                      std::string_view where) const {
  const std::vector<ChatMessage>& messages = conversation.messages;
  const std::vector<Turn> turns = turns_of(text, messages.size());
  const bool some_turn = std::any_of(turns.begin(), turns.end(), [](const Turn& t) { return t.is_there; });
  const std::vector<Spelled> spelled = spelled_in(text);
  std::vector<Span> out;
  end_counts = false;
  if (program.marks_generation())
    text.for_each_run([&](size_t begin, size_t end, TextMark mark) {
      if (!mark.generated) return;
      if (mark.turn >= 0 && !messages[static_cast<size_t>(mark.turn)].counts.value_or(true)) return;
      if (!out.empty() && out.back().end == begin)
        out.back().end = end;
      else
        out.push_back({begin, end});
      if (mark.turn + 1 == static_cast<int32_t>(messages.size()))
        end_counts = std::none_of(spelled.begin(), spelled.end(),
                                  [&](const Spelled& token) { return token.end == end; });
    });
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool is_assistant = messages[i].role == "assistant";
    if (!messages[i].counts.value_or(is_assistant)) continue;
    if (is_assistant && program.marks_generation()) continue;
    const Turn& turn = turns[i];
    if (!some_turn)
      base::fail(
          "{}: {} does not write its messages in a loop over them, so the assistant's cannot be told from "
          "others; a template with {{% generation %}} is needed",
          where, program.name());
    if (turn.in_pieces || (!turn.is_there && turn.copied_elsewhere))
      base::fail(
          "{}: message {}: {} writes it in several places, so that what counts cannot be told; a template "
          "with {{% generation %}} is needed",
          where, i + 1, program.name());
    if (!turn.is_there) continue;  // left out by the template
    const Span whole{turn.begin, turn.end};
    if (!is_assistant && turn.data_begin == std::string::npos) continue;
    const size_t begin = is_assistant ? header(program, input, i, text, whole, now, where) : turn.data_begin;
    bool has_end = false;
    const size_t end = end_of_turn(spelled, text, whole, begin, has_end);
    if (begin < end) out.push_back({begin, end});
    if (i + 1 == messages.size()) end_counts = !has_end;
  }
  std::sort(out.begin(), out.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  return out;
}

void TokenizerChat::find_end_of_answer() {
  Conversation example;
  example.messages = {{.role = "user", .content = "x"}, {.role = "assistant", .content = "y"}};
  try {
    const ChatProgram& program = program_for(example, "example");
    const TemplateInput input = input_of(example);
    const TracedText text = program.render(input, 2, false, now());
    bool ignored = false;
    const std::vector<Span> counted = spans(program, input, example, text, now(), ignored, "example");
    if (counted.empty()) return;
    for (const Spelled& token : spelled_in(text))
      if (token.end == counted.back().end && !token.by_people) end_of_answer_ = {token.id};
  } catch (const base::Error&) {
    // The template does not write the example: nothing is known of its ends.
  }
}

}  // namespace pleat::data
