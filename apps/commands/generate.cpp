#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/error.h"
#include "data/chat/open_chat.h"
#include "data/tokenizer/utf8.h"
#include "generate.h"
#include "infer/prompts.h"
#include "infer/stops.h"
#include "infer/text_stream.h"
#include "train/run_tokenizer.h"

namespace pleat::apps {
namespace {

std::string joined(const std::vector<int32_t>& ids) { return fmt::format("{}", fmt::join(ids, " ")); }

const char* name_of(infer::Finish finish) {
  switch (finish) {
    case infer::Finish::Length:
      return "length";
    case infer::Finish::StopToken:
      return "end_token";
    case infer::Finish::Stopped:
      return "stop_string";
  }
  return "";
}

// The limit on prompt and new tokens together, and from it how many tokens are drawn.
int64_t tokens_to_draw(const GenerateArguments& a, const exchange::ModelSource& source, size_t longest) {
  const int64_t limit = a.context > 0 ? a.context : source.max_context;
  const int64_t prompt = static_cast<int64_t>(longest);
  const std::string from =
      a.context > 0 ? "--context" : fmt::format("{}; --context N allows more", source.max_context_key);
  if (limit <= 0) return a.max_tokens > 0 ? a.max_tokens : 200;
  if (prompt >= limit)
    base::fail("a prompt of {} leaves no room in a context of {} ({})", base::counted(prompt, "token"), limit,
               from);
  if (a.max_tokens > limit - prompt)
    base::fail("{} and --max-tokens {} are more than the context of {} ({})",
               base::counted(prompt, "prompt token"), a.max_tokens, limit, from);
  return a.max_tokens > 0 ? a.max_tokens : std::min<int64_t>(200, limit - prompt);
}

class Generator {
 public:
  Generator(GenerateArguments& a)
      : a_(a), source_(exchange::open_model_source(a.model.folder, a.model.options)) {
    for (const std::string& remark : source_.remarks) fmt::print(stderr, "{}\n", remark);
    if (!source_.tokenizer.empty() && !a.ids)
      vocabulary_ = std::make_unique<infer::Vocabulary>(source_.tokenizer);
  }

  int run() {
    if (a_.chat) open_chat();
    if (a_.chat && a_.prompts.empty() && a_.prompt_file.empty() && is_input_a_terminal()) return converse();
    if (a_.prompts.empty() && a_.prompt_file.empty() && is_input_given())
      if (std::string text = read_standard_input(); !text.empty()) add_prompt(text);
    for (const std::string& text : a_.prompts) add_prompt(text == "-" ? read_standard_input() : text);
    if (!a_.prompt_file.empty())
      for (infer::Prompt& p : infer::read_prompts(a_.prompt_file)) {
        if (a_.ids && !p.ids) p = infer::parse_ids(p.text);
        prompts_.push_back(std::move(p));
      }
    if (prompts_.empty() && a_.chat)
      base::fail("there is nothing to answer; give --prompt, or text on standard input");
    if (prompts_.empty()) {
      add_prompt(a_.ids ? "0" : "The ");
      fmt::print(stderr, "no prompt was given (--prompt): {} is continued\n",
                 a_.ids ? "token 0" : "\"The \"");
    }
    const config::Config& config = source_.config;
    if (chat_)
      for (infer::Prompt& p : prompts_) {
        std::vector<data::ChatMessage> messages = first_messages(a_.system);
        messages.push_back({.role = "user", .content = p.text});
        p.ids = chat_->encode(messages);
      }
    const auto encoded = infer::encode_prompts(prompts_, vocabulary_.get(), config.model.vocab_size);
    size_t longest = 0;
    for (const auto& tokens : encoded) longest = std::max(longest, tokens.size());
    a_.options.max_tokens = tokens_to_draw(a_, source_, longest);
    choose_stops();
    infer::InferenceChoice choice;
    choice.num_sequences = std::min<int64_t>(a_.batch, static_cast<int64_t>(encoded.size()));
    choice.max_length = static_cast<int64_t>(longest) + a_.options.max_tokens;
    choice.prefill_rows = std::clamp<int64_t>(256 / choice.num_sequences, 1, static_cast<int64_t>(longest));
    choice.whole_sequences = a_.no_cache;
    infer::Inference model(config, choice);
    source_.load(model);
    const auto next = infer::make_next_token(model);
    for (size_t first = 0; first < encoded.size(); first += static_cast<size_t>(choice.num_sequences))
      batch(*next, encoded, first,
            std::min(encoded.size(), first + static_cast<size_t>(choice.num_sequences)));
    fmt::print(stderr, "prompt: {}, {:.1f} tokens/s; generated: {}, {:.1f} tokens/s{}\n",
               base::counted(times_.prompt_tokens, "token"),
               rate(times_.prompt_tokens, times_.prefill_seconds), base::counted(times_.new_tokens, "token"),
               rate(times_.new_tokens, times_.decode_seconds), a_.no_cache ? " (without cache)" : "");
    return 0;
  }

 private:
  void add_prompt(const std::string& text) {
    prompts_.push_back(a_.ids ? infer::parse_ids(text) : infer::Prompt{text, std::nullopt});
  }

  void open_chat() {
    if (!vocabulary_) base::fail("--chat needs text, and there is no tokenizer");
    std::optional<data::ChatTemplate> own;
    if (source_.is_run) own = train::run_chat_template(source_.config);
    if (source_.is_run && !own)
      fmt::print(stderr, "the run was not trained on conversations; the tokenizer's own template is used\n");
    const data::ChatTemplate t = own ? *own : data::chat_preset(data::kTokenizersOwn);
    chat_ = std::make_unique<infer::ChatPrompt>(t, vocabulary_->tokenizer());
  }

  void choose_stops() {
    check_sampling(a_.options);
    if (!a_.stops.empty() && !vocabulary_) base::fail("--stop needs text, and there is no tokenizer");
    std::vector<int32_t>& tokens = a_.options.stop_tokens;
    if (!a_.ignore_end) {
      tokens = source_.end_tokens;
      if (vocabulary_ && vocabulary_->end_of_document()) tokens.push_back(*vocabulary_->end_of_document());
    }
    if (!vocabulary_) return;
    const infer::Stops stops = infer::make_stops(a_.stops, *vocabulary_);
    tokens.insert(tokens.end(), stops.tokens.begin(), stops.tokens.end());
    stop_texts_ = stops.texts;
    if (!chat_) return;
    tokens.insert(tokens.end(), chat_->end_tokens().begin(), chat_->end_tokens().end());
    stop_texts_.insert(stop_texts_.end(), chat_->end_texts().begin(), chat_->end_texts().end());
  }

  // A conversation on the terminal.
  int converse() {
    if (a_.json || a_.ids) base::fail("--json and --ids need --prompt: a conversation on a terminal is text");
    choose_stops();
    const int64_t limit = a_.context > 0            ? a_.context
                          : source_.max_context > 0 ? std::min<int64_t>(source_.max_context, 4096)
                                                    : 4096;
    infer::InferenceChoice choice;
    choice.num_sequences = 1;
    choice.max_length = limit;
    choice.prefill_rows = std::min<int64_t>(256, limit);
    choice.whole_sequences = a_.no_cache;
    infer::Inference model(source_.config, choice);
    source_.load(model);
    const auto next = infer::make_next_token(model);
    uint32_t turn = 0;
    talk(a_.system, [&](const std::vector<data::ChatMessage>& messages) {
      const std::vector<int32_t> prompt = chat_->encode(messages);
      a_.options.max_tokens = limit - static_cast<int64_t>(prompt.size());
      if (a_.options.max_tokens < 1)
        base::fail("the conversation has {} tokens and leaves no room in a context of {}; /clear starts anew",
                   prompt.size(), limit);
      if (a_.max_tokens > 0) a_.options.max_tokens = std::min(a_.options.max_tokens, a_.max_tokens);
      infer::TextStream text = stream_of(prompt);
      const auto show = [](const std::string& part) {
        fmt::print("{}", part);
        std::fflush(stdout);
      };
      infer::generate(
          *next, {prompt}, a_.options, turn++,
          [&](size_t, int32_t token) {
            show(text.push(token));
            return !text.stopped();
          },
          &times_);
      show(text.finish() + "\n");
      return chat_->answer(text.text());
    });
    return 0;
  }

  infer::TextStream stream_of(const std::vector<int32_t>& prompt) const {
    return infer::TextStream(
        [this](std::span<const int32_t> t) { return vocabulary_ ? vocabulary_->decode(t) : std::string(); },
        prompt, stop_texts_);
  }

  static double rate(int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  }

  void batch(infer::NextToken& next, const std::vector<std::vector<int32_t>>& encoded, size_t first,
             size_t end) {
    const std::vector<std::vector<int32_t>> prompts(encoded.begin() + static_cast<std::ptrdiff_t>(first),
                                                    encoded.begin() + static_cast<std::ptrdiff_t>(end));
    const bool stream = prompts_.size() == 1 && !a_.json;
    const auto show = [&](const std::string& text) {
      if (stream && !text.empty()) fmt::print("{}", text), std::fflush(stdout);
    };
    std::vector<infer::TextStream> texts;
    for (const auto& tokens : prompts) texts.push_back(stream_of(tokens));
    if (!chat_) show(prompts_[first].text);
    const auto generations = infer::generate(
        next, prompts, a_.options, static_cast<uint32_t>(first),
        [&](size_t p, int32_t token) {
          if (!vocabulary_) show(fmt::format(" {}", token));
          show(texts[p].push(token));
          return !texts[p].stopped();
        },
        &times_);
    for (size_t p = 0; p < prompts.size(); ++p) {
      show(texts[p].finish());
      const infer::Prompt& prompt = prompts_[first + p];
      const infer::Generation& g = generations[p];
      if (a_.json) {
        nlohmann::json line = {{"index", first + p},
                               {"prompt_tokens", prompts[p]},
                               {"tokens", g.tokens},
                               {"finish", name_of(g.finish)}};
        if (vocabulary_) {
          line["prompt"] = data::replace_broken_utf8(prompt.text);
          line["text"] = chat_ ? chat_->answer(texts[p].text()) : texts[p].text();
        }
        fmt::print("{}\n", line.dump());
      } else if (!stream) {
        fmt::print("=== prompt {} ===\n{}{}{}\n\n", first + p + 1, prompt.text, chat_ ? "\n" : "",
                   vocabulary_ ? texts[p].text() : " " + joined(g.tokens));
      }
    }
    if (stream) fmt::print("\n");
    std::fflush(stdout);
  }

  GenerateArguments& a_;
  exchange::ModelSource source_;
  std::unique_ptr<infer::Vocabulary> vocabulary_;
  std::unique_ptr<infer::ChatPrompt> chat_;
  std::vector<infer::Prompt> prompts_;
  std::vector<std::string> stop_texts_;
  infer::GenerateTimes times_;
};

}  // namespace

void add_generate(CLI::App& command, Action& chosen) {
  auto a = std::make_shared<GenerateArguments>();
  CLI::App* c = &command;
  add_model_argument(*c, a->model);
  auto* prompt =
      c->add_option("--prompt", a->prompts,
                    "Text to continue (repeatable); -: all of standard input. Default: standard input "
                    "where that is a pipe or a file, else \"The \" (token 0 with --ids)");
  prompt->allow_extra_args(false);
  c->add_option(
      "--prompts", a->prompt_file,
      "File with one prompt per line, -: standard input; .jsonl: strings, or objects with \"prompt\" or "
      "\"tokens\"");
  auto* chat = c->add_flag("--chat", a->chat,
                           "Prompts are what a user says, written as the model was trained; without any, a "
                           "conversation on the terminal");
  c->add_option("--system", a->system, "With --chat: what the system says first")->needs(chat);
  c->add_option("--batch", a->batch, "Prompts that run together")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->add_option("--max-tokens", a->max_tokens, "Tokens to draw (default: 200, or what the context leaves)")
      ->check(CLI::PositiveNumber);
  c->add_option("--context", a->context,
                "Prompt and new tokens together may be this many (default: the model's limit)")
      ->check(CLI::PositiveNumber);
  c->add_option("--temperature", a->options.temperature, "0 takes the most likely token")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  c->add_option("--top-k", a->options.top_k, "Draw from the k most likely tokens only (0: all)")
      ->check(CLI::NonNegativeNumber);
  c->add_option("--top-p", a->options.top_p, "Draw from the smallest set with this probability")
      ->check(CLI::PositiveNumber & CLI::Range(0.0, 1.0))
      ->capture_default_str();
  c->add_option("--seed", a->options.seed, "Seed of the draws")->capture_default_str();
  c->add_option("--stop", a->stops, "End before this text, or before this special token (repeatable)")
      ->allow_extra_args(false);
  c->add_flag("--ignore-end", a->ignore_end, "Do not stop at the end-of-text token");
  c->add_flag("--ids", a->ids, "Prompts and output are token ids, separated by commas or spaces")
      ->excludes(chat);
  c->add_flag("--no-cache", a->no_cache, "Run the whole sequence for every token: slow, the reference");
  c->add_flag("--json", a->json, "One JSON object per prompt: tokens, text, why it ended");
  add_example(*c, "pleat generate runs/demo --prompt 'hacker: ' --temperature 0.7 --stop '.'");
  c->callback([a, &chosen] { chosen = [a] { return Generator(*a).run(); }; });
}

}  // namespace pleat::apps
