#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/error.h"
#include "base/standard_streams.h"
#include "base/text_name.h"
#include "command.h"
#include "data/chat/chat_line.h"
#include "data/chat/open_chat.h"
#include "data/indexed_dataset.h"
#include "data/text_source.h"
#include "infer/evaluate.h"
#include "infer/score_requests.h"
#include "report/console.h"
#include "train/run_tokenizer.h"

namespace pleat::apps {
namespace {

struct EvalArguments {
  ModelArgument model;
  std::string data, requests, out, separator, jsonl_key = "text";
  int64_t seq_len = 0, stride = 0, batch_tokens = 0, prefix_token = -1, limit = 0;
  bool json = false, special_tokens = false, all_tokens = false, quiet = false;
};

// On a terminal a line that is written over, at most twice a second; elsewhere a line every five seconds.
class Progress {
 public:
  explicit Progress(bool quiet) : quiet_(quiet) {}
  void show(const std::string& what, double share) {
    const auto now = std::chrono::steady_clock::now();
    if (quiet_ || now - last_ < std::chrono::milliseconds(rewrites_ ? 500 : 5000)) return;
    last_ = now;
    const double passed = std::chrono::duration<double>(now - start_).count();
    const double left = share > 0 ? passed * (1 - share) / share : 0;
    const std::string line =
        fmt::format("{}, {:.0f} s passed, about {:.0f} s left", what, passed, std::max(left, 0.0));
    base::write_status(rewrites_ ? "\r\x1b[K" + line : line + "\n");
    line_open_ = rewrites_;
  }
  ~Progress() {
    if (line_open_) base::write_status("\n");
  }
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const bool quiet_, rewrites_ = report::Progress::mode_of_stderr() == report::Progress::Mode::Rewrite;
  bool line_open_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), last_ = start_;
};

std::string seen(int64_t documents, int64_t tokens) {
  return fmt::format("{}, {}", base::counted(documents, "document"), base::counted(tokens, "token"));
}

class Evaluation {
 public:
  explicit Evaluation(const EvalArguments& a)
      : a_(a), source_(exchange::open_model_source(a.model.folder, a.model.options)) {
    if (!a.quiet)
      for (const std::string& remark : source_.remarks) fmt::print(stderr, "{}\n", remark);
    if (!source_.tokenizer.empty()) vocabulary_ = std::make_unique<infer::Vocabulary>(source_.tokenizer);
    seq_len_ = a.seq_len > 0 ? a.seq_len : source_.max_context;
    if (seq_len_ <= 0) base::fail("the model states no context length; give --seq-len");
    if (a.seq_len > source_.max_context && source_.max_context > 0)
      base::fail("--seq-len {} is more than the model's context of {} ({})", a.seq_len, source_.max_context,
                 source_.max_context_key);
    // A model made for very long texts need not be given all that memory when nobody asked for it.
    if (a.seq_len == 0) seq_len_ = std::min<int64_t>(seq_len_, 4096);
    data_ = a.data;
    if (!a.requests.empty() || !data_.empty()) return;
    if (!source_.is_run)
      base::fail("a model folder has no data of its own; give --data, or --requests with --out");
    data_ = source_.config.data.valid;
    if (data_.empty())
      base::fail(
          "the run has no validation data (data.valid, data.valid_split); give --data, or --requests with "
          "--out");
    if (!std::filesystem::exists(data_ + ".idx"))
      base::fail("the run's validation data '{}' is not there any more; give --data", data_);
  }

  int perplexity() {
    const int64_t stride = a_.stride > 0 ? a_.stride : seq_len_;
    if (stride > seq_len_) base::fail("--stride {} is more than --seq-len {}", stride, seq_len_);
    const auto model = make_model(std::max(seq_len_, a_.batch_tokens > 0 ? a_.batch_tokens : int64_t{1024}));
    infer::PerplexityMeter meter(*model, seq_len_, stride);
    Progress progress(a_.quiet);
    int64_t bytes = 0, tokens = 0;
    double before = 0;
    bool masked = false;
    for_each_document([&](std::span<const int32_t> document, std::span<const uint8_t> mask, double share) {
      meter.add(document, mask, [&](int64_t done) {
        progress.show(seen(meter.num_documents(), tokens + done),
                      before + (share - before) * double(done) / double(document.size()));
      });
      before = share;
      tokens += static_cast<int64_t>(document.size());
      masked |= !mask.empty();
      if (vocabulary_ && document.size() > 1)
        bytes += static_cast<int64_t>(vocabulary_->decode(document.subspan(1)).size());
      progress.show(seen(meter.num_documents(), tokens), share);
      return a_.limit == 0 || meter.num_documents() < a_.limit;
    });
    const infer::Score s = meter.total();
    if (s.num_tokens == 0) base::fail("'{}' holds nothing to score", data_);
    if (masked) bytes = 0;  // of some tokens only: no text of its own
    const double nats = -s.log_likelihood / static_cast<double>(s.num_tokens);
    const double bits = bytes > 0 ? -s.log_likelihood / std::log(2.0) / static_cast<double>(bytes) : 0;
    if (a_.json) {
      nlohmann::json out = {{"nats_per_token", nats},
                            {"perplexity", std::exp(nats)},
                            {"tokens", s.num_tokens},
                            {"documents", meter.num_documents()},
                            {"data", data_},
                            {"tokens_of_the_documents", meter.num_tokens()},
                            {"seq_len", seq_len_},
                            {"stride", stride},
                            {"seconds", progress.seconds()}};
      if (bytes > 0) out["bytes"] = bytes, out["bits_per_byte"] = bits;
      fmt::print("{}\n", out.dump());
      return 0;
    }
    fmt::print("{:.6f} nats per token, perplexity {:.4f}", nats, std::exp(nats));
    if (bytes > 0) fmt::print(", {:.6f} bits per byte", bits);
    fmt::print("\n{} of {} of {} scored in windows of {}, stride {}\n",
               masked ? fmt::format("{} of {}", s.num_tokens, base::counted(meter.num_tokens(), "token"))
                      : base::counted(s.num_tokens, "token"),
               base::counted(meter.num_documents(), "document"), data_, seq_len_, stride);
    if (masked) fmt::print("scored are the tokens that count in the loss; --all-tokens scores all\n");
    return 0;
  }

  int answer_requests() {
    infer::RequestOptions o;
    o.max_length = seq_len_;
    o.special_tokens = a_.special_tokens;
    if (a_.prefix_token >= 0)
      o.prefix_token = static_cast<int32_t>(a_.prefix_token);
    else if (vocabulary_)
      o.prefix_token = vocabulary_->prefix_token();
    const infer::RequestFile file = infer::read_requests(a_.requests, vocabulary_.get(), o);
    if (file.requests.empty()) base::fail("'{}' holds no request", a_.requests);
    int64_t longest = 0, total = 0;
    for (const infer::ScoreRequest& r : file.requests)
      longest = std::max(longest, r.num_rows()), total += r.num_rows();
    const int64_t wanted = a_.batch_tokens > 0 ? a_.batch_tokens : 1024;
    const auto model = make_model(std::max(longest, std::min(total, wanted)));
    std::vector<infer::Score> scores;
    {
      Progress progress(a_.quiet);
      const auto n = file.requests.size();
      scores = infer::score(*model, file.requests, [&](int64_t done) {
        progress.show(fmt::format("{} of {}", done, base::counted(static_cast<int64_t>(n), "request")),
                      static_cast<double>(done) / static_cast<double>(n));
      });
    }
    infer::write_answers(a_.out, file, scores);
    if (file.num_truncated > 0)
      fmt::print(stderr, "{} longer than {} tokens and lost the front\n",
                 base::counted(file.num_truncated, "context was", "contexts were"), seq_len_);
    if (!a_.quiet)
      fmt::print(stderr, "{} written to {}\n",
                 base::counted(static_cast<int64_t>(file.extra.size()), "answer"), a_.out);
    return 0;
  }

 private:
  std::unique_ptr<infer::Inference> make_model(int64_t rows) const {
    infer::InferenceChoice choice;
    choice.score_tokens = rows;
    auto model = std::make_unique<infer::Inference>(source_.config, choice);
    source_.load(*model);
    return model;
  }

  // body(tokens, loss mask or nothing, share of the data seen) -> whether to go on.
  template <class Body>
  void for_each_document(const Body& body) const {
    const std::filesystem::path path(data_);
    if (std::filesystem::exists(data_ + ".idx")) {
      const data::IndexedDataset set(data_, source_.config.model.vocab_size);
      const bool has_mask = set.has_loss_mask() && !a_.all_tokens;
      std::vector<int32_t> tokens;
      std::vector<uint8_t> mask;
      for (int64_t d = 0; d < set.num_documents(); ++d) {
        const int64_t begin = set.document_begin(d),
                      end = d + 1 < set.num_documents() ? set.document_begin(d + 1) : set.num_tokens();
        tokens.resize(static_cast<size_t>(end - begin));
        set.read(begin, tokens);
        mask.resize(has_mask ? tokens.size() : 0);
        if (has_mask) set.read_loss_mask(begin, mask);
        if (!body(tokens, mask, static_cast<double>(end) / static_cast<double>(set.num_tokens()))) return;
      }
      return;
    }
    if (!std::filesystem::is_regular_file(path))
      base::fail("'{}' is neither a text file nor the prefix of a .bin/.idx pair", data_);
    if (!vocabulary_) base::fail("the model folder holds no tokenizer; give one with --tokenizer");
    const double size = std::max(1.0, static_cast<double>(std::filesystem::file_size(path)));
    const bool is_jsonl = base::text_name(data_).kind == base::TextKind::Jsonl;
    if (const auto chat = source_.is_run ? train::run_chat_template(source_.config) : std::nullopt;
        chat && is_jsonl && !holds_texts())
      return for_each_conversation(*chat, size, body);
    const auto source =
        is_jsonl ? data::open_jsonl(data_, {.key = a_.jsonl_key}) : data::open_text(data_, a_.separator);
    std::string text;
    for (data::TextPiece piece; source->next(piece);) {
      text += piece.text;
      if (!piece.ends_document) continue;
      std::vector<int32_t> tokens = vocabulary_->encode(text, a_.special_tokens);
      text.clear();
      if (tokens.empty()) continue;
      // As in a dataset: the end of a document is a token to be predicted.
      if (const auto end = vocabulary_->end_of_document()) tokens.push_back(*end);
      if (!body(tokens, {}, static_cast<double>(source->bytes_read()) / size)) return;
    }
  }

  // Whether the file's first line has the text that was asked for.
  bool holds_texts() const {
    data::LineSource lines(data_);
    std::string_view line;
    int64_t number = 0;
    if (!lines.next(line, number)) return true;
    try {
      data::document_from_json(line, a_.jsonl_key, data_);
      return true;
    } catch (const base::Error&) {
      return false;
    }
  }

  // As the run would train on them: written by its template, with the tokens that count.
  template <class Body>
  void for_each_conversation(const data::ChatTemplate& chat, double size, const Body& body) const {
    if (a_.special_tokens)
      base::fail("--special-tokens: '{}' holds conversations, and the run's template writes their tokens",
                 data_);
    const auto encoder = data::open_chat(chat, vocabulary_->tokenizer());
    data::LineSource lines(data_);
    std::string_view line;
    for (int64_t number = 0; lines.next(line, number);) {
      const std::string where = fmt::format("{}:{}", data_, number);
      data::EncodedChat encoded = encoder->encode(data::conversation_from_json(line, where), where);
      if (encoded.tokens.empty()) continue;
      if (const auto end = vocabulary_->end_of_document()) {
        encoded.tokens.push_back(*end);
        encoded.loss_mask.push_back(encoded.end_counts);
      }
      if (a_.all_tokens) encoded.loss_mask.clear();
      if (!body(encoded.tokens, encoded.loss_mask, static_cast<double>(lines.bytes_read()) / size)) return;
    }
  }

  const EvalArguments& a_;
  exchange::ModelSource source_;
  std::unique_ptr<infer::Vocabulary> vocabulary_;
  int64_t seq_len_ = 0;
  std::string data_;  // what is scored
};

}  // namespace

void add_eval(CLI::App& command, Action& chosen) {
  auto a = std::make_shared<EvalArguments>();
  CLI::App* c = &command;
  add_model_argument(*c, a->model);
  auto* data = c->add_option(
      "--data", a->data,
      "Text or JSONL file, or prefix of a .bin/.idx pair: its perplexity (default: the run's "
      "validation data). Conversations of a run trained on such are written by its chat template, "
      "and the tokens count that count in training");
  auto* requests =
      c->add_option("--requests", a->requests,
                    "JSONL with \"context\" and \"continuation\" (or \"arguments\", \"text\", \"tokens\")");
  auto* out = c->add_option("--out", a->out, "JSONL file for the answers");
  data->excludes(requests);
  requests->needs(out);
  out->needs(requests);
  c->add_option("--seq-len", a->seq_len, "Tokens the model sees at once (default: its context, at most 4096)")
      ->check(CLI::PositiveNumber);
  c->add_option("--stride", a->stride, "Windows start this many tokens apart (default: --seq-len, disjoint)")
      ->check(CLI::PositiveNumber)
      ->excludes(requests);
  c->add_option("--batch-tokens", a->batch_tokens, "Tokens per run of the program (default: 1024 or more)")
      ->check(CLI::PositiveNumber);
  c->add_option("--separator", a->separator, "Cuts a text file into documents (default: one document)")
      ->needs(data);
  c->add_option("--jsonl-key", a->jsonl_key, "Member of a JSONL line that holds the text")
      ->capture_default_str()
      ->needs(data);
  c->add_option("--limit", a->limit, "Only this many documents (0: all)")
      ->check(CLI::NonNegativeNumber)
      ->excludes(requests);
  c->add_option("--prefix-token", a->prefix_token,
                "Id that stands for an empty context (default: the tokenizer's)")
      ->check(CLI::NonNegativeNumber)
      ->needs(requests);
  c->add_flag("--all-tokens", a->all_tokens, "Score every token, also where the data says which ones count")
      ->excludes(requests);
  c->add_flag("--special-tokens", a->special_tokens, "Encode with the tokenizer's begin and end tokens");
  c->add_flag("--json", a->json, "One JSON object instead of text")->excludes(requests);
  c->add_flag("--quiet", a->quiet, "No progress");
  add_example(*c, "pleat eval my-model --requests arc.jsonl --out answers.jsonl");
  c->callback([a, &chosen] {
    chosen = [a] {
      Evaluation evaluation(*a);
      return a->requests.empty() ? evaluation.perplexity() : evaluation.answer_requests();
    };
  });
}

}  // namespace pleat::apps
