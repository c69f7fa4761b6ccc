#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/error.h"
#include "commands/data.h"
#include "data/inspect.h"
#include "data/tokenizer/open_tokenizer.h"

namespace pleat::apps {
namespace {

using Json = nlohmann::ordered_json;

struct DataInspectArguments {
  std::string prefix, tokenizer;
  int64_t documents = 3, tokens = 200, samples = 3, first = 0;
  data::SamplerOptions sampler = {.shuffle = false};
  std::string packing;
  bool joined = false, json = false;
};

std::unique_ptr<data::TextTokenizer> tokenizer_of(const DataInspectArguments& a,
                                                  const std::optional<data::DatasetInfo>& info) {
  if (a.tokenizer.empty() && !info)
    base::fail("{}.json is not there to say which tokenizer made these tokens: give --tokenizer", a.prefix);
  std::unique_ptr<data::TextTokenizer> tokenizer =
      data::open_tokenizer(a.tokenizer.empty() ? info->tokenizer : a.tokenizer);
  if (info && tokenizer->tokenizer_hash() != info->tokenizer_sha256)
    base::fail("{} was tokenized with {} (sha256 {}), but {} has sha256 {}", a.prefix, info->tokenizer,
               info->tokenizer_sha256.substr(0, 16), tokenizer->name(),
               tokenizer->tokenizer_hash().substr(0, 16));
  return tokenizer;
}

Json header(const data::IndexedDataset& set) {
  Json out = {{"prefix", set.prefix()},
              {"documents", set.num_documents()},
              {"sequences", set.num_sequences()},
              {"tokens", set.num_tokens()},
              {"token_type", data::token_type_name(set.token_type())},
              {"loss_mask", set.has_loss_mask()}};
  if (!set.info()) return out;
  out["vocab_size"] = set.info()->vocab_size;
  out["end_of_document"] = set.info()->end_of_document;
  out["tokenizer"] = set.info()->tokenizer;
  out["tokenizer_sha256"] = set.info()->tokenizer_sha256;
  if (set.info()->num_loss_tokens) out["loss_tokens"] = *set.info()->num_loss_tokens;
  return out;
}

void print_header(const data::IndexedDataset& set, const data::TextTokenizer& tokenizer) {
  fmt::print("{}: {}, {}, {} ({})\n", set.prefix(), base::counted(set.num_documents(), "document"),
             base::counted(set.num_sequences(), "sequence"), base::counted(set.num_tokens(), "token"),
             data::token_type_name(set.token_type()));
  if (!set.info()) return;
  fmt::print("tokenizer {} ({}), {} ids, {} ends a document\n", set.info()->tokenizer,
             set.info()->tokenizer_kind, set.info()->vocab_size, set.info()->end_of_document);
  if (const std::string remark = tokenizer.not_applied(); !remark.empty()) fmt::print("note: {}\n", remark);
  if (set.info()->num_loss_tokens)
    fmt::print("loss mask: {} of {} tokens count\n", *set.info()->num_loss_tokens, set.num_tokens());
}

// Stretches of a document that count in the loss, or do not; without a mask one that does.
std::vector<data::SampleRun> loss_runs(const data::IndexedDataset& set, int64_t document,
                                       std::span<const int32_t> ids, const data::TextTokenizer& tokenizer) {
  std::vector<uint8_t> mask(ids.size(), 1);
  if (set.has_loss_mask()) set.read_loss_mask(set.document_begin(document), mask);
  std::vector<data::SampleRun> runs;
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool counts = mask[i] != 0;
    if (runs.empty() || runs.back().counts != counts)
      runs.push_back({.begin = int64_t(i), .document = document, .position = int64_t(i), .counts = counts});
    runs.back().end = int64_t(i) + 1;
  }
  for (data::SampleRun& run : runs)
    run.text =
        tokenizer.decode(ids.subspan(size_t(run.begin), size_t(run.end - run.begin)), data::DecodeOptions{});
  return runs;
}

Json runs_json(const std::vector<data::SampleRun>& all) {
  Json runs = Json::array();
  for (const data::SampleRun& run : all)
    runs.push_back({{"begin", run.begin},
                    {"end", run.end},
                    {"document", run.document},
                    {"position", run.position},
                    {"loss", run.counts},
                    {"text", run.text}});
  return runs;
}

void print_run(const data::SampleRun& run) {
  fmt::print("  {:>6}..{:<6} {}  {}\n", run.begin, run.end - 1, run.counts ? "loss" : " -  ",
             quoted_text(run.text));
}

void show_documents(const DataInspectArguments& a, const data::IndexedDataset& set,
                    const data::TextTokenizer& tokenizer, Json& json) {
  for (int64_t d = 0; d < std::min(a.documents, set.num_documents()); ++d) {
    const int64_t begin = set.document_begin(d), end = set.document_begin(d + 1);
    std::vector<int32_t> ids(static_cast<size_t>(std::min(a.tokens, end - begin)));
    set.read(begin, ids);
    const std::string text = tokenizer.decode(ids, data::DecodeOptions{});
    const std::vector<data::SampleRun> runs = loss_runs(set, d, ids, tokenizer);
    if (a.json) {
      json["shown"].push_back(
          {{"document", d}, {"begin", begin}, {"num_tokens", end - begin}, {"tokens", ids}, {"text", text}});
      if (set.has_loss_mask()) json["shown"].back()["runs"] = runs_json(runs);
      continue;
    }
    fmt::print("document {}: {} from {}\n", d, base::counted(end - begin, "token"), begin);
    if (!set.has_loss_mask())
      fmt::print("  {}\n", quoted_text(text));
    else
      for (const data::SampleRun& run : runs) print_run(run);
  }
}

Json sample_json(const data::InspectedSample& s, int64_t ordinal) {
  return {{"sample", ordinal},
          {"window", s.window},
          {"first_token", s.first_token},
          {"continues", s.continues},
          {"padding", s.num_padding},
          {"tokens", s.sample.tokens},
          {"labels", s.sample.labels},
          {"loss_mask", s.sample.loss_mask},
          {"positions", s.sample.positions},
          {"doc_start", s.sample.doc_start},
          {"runs", runs_json(s.runs)}};
}

void print_sample(const data::InspectedSample& s, int64_t ordinal, bool whole) {
  const int64_t length = static_cast<int64_t>(s.sample.tokens.size());
  fmt::print(
      "sample {}: {}, {} document{}, {} of {} labels count\n", ordinal,
      whole ? fmt::format("sequence {}, {} of {} places filled", s.window, length - s.num_padding, length)
            : fmt::format("stream tokens {} to {}", s.first_token, s.first_token + length),
      s.num_documents, s.num_documents == 1 ? "" : "s", s.num_loss_tokens, length - s.num_padding);
  int64_t document = -1;
  for (const data::SampleRun& run : s.runs) {
    if (run.document != document)
      fmt::print("  -- document {}, positions from {}{}\n", run.document, run.position,
                 run.begin == 0 && s.continues ? " (it began before this sample)" : "");
    document = run.document;
    print_run(run);
  }
}

int inspect(const DataInspectArguments& a) {
  data::require_dataset(a.prefix);
  const auto info = data::read_dataset_info(a.prefix);
  const auto tokenizer = tokenizer_of(a, info);
  const data::IndexedDataset set(a.prefix, tokenizer->vocab_size());
  Json json = header(set);
  if (!a.json) print_header(set, *tokenizer);
  if (a.sampler.seq_len == 0) {
    show_documents(a, set, *tokenizer, json);
  } else {
    data::SamplerOptions options = a.sampler;
    options.isolate_documents = !a.joined;
    // As training chooses where nothing is asked.
    const bool conversations = set.info() && !set.info()->chat_template.empty() && !a.joined;
    options.packing = data::packing_of(!a.packing.empty() ? a.packing : conversations ? "whole" : "stream");
    const data::Sampler sampler(set, options);
    if (const data::WholeDocuments* whole = sampler.whole_documents()) {
      if (a.json)
        json["packing"] = {{"documents", whole->num_documents()},
                           {"sequences", whole->num_sequences()},
                           {"tokens", whole->num_tokens()},
                           {"filled", whole->filled()},
                           {"left_out", whole->num_dropped()}};
      else
        fmt::print("{}\n", whole->text());
    }
    data::DataPosition position = sampler.advanced({}, a.first);
    for (int64_t i = 0; i < a.samples; ++i) {
      const data::InspectedSample s = data::inspect_sample(set, sampler, *tokenizer, position);
      if (a.json)
        json["samples"].push_back(sample_json(s, a.first + i));
      else
        print_sample(s, a.first + i, sampler.whole_documents() != nullptr);
      position = sampler.advanced(position, 1);
    }
  }
  if (a.json) fmt::print("{}\n", json.dump(1, ' ', false, Json::error_handler_t::replace));
  return 0;
}

}  // namespace

void add_data_inspect(CLI::App& command, Action& chosen) {
  auto a = std::make_shared<DataInspectArguments>();
  CLI::App* c = &command;
  c->add_option("prefix", a->prefix, "Prefix of the files")->required();
  c->add_option("--tokenizer", a->tokenizer, "As for data tokenize; PREFIX.json says it otherwise");
  c->add_option("--documents", a->documents, "Documents to show")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  c->add_option("--tokens", a->tokens, "Tokens of each to show")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  c->add_option("--seq-len", a->sampler.seq_len, "Show samples of this length instead")
      ->check(CLI::PositiveNumber);
  c->add_option("--samples", a->samples, "Samples to show")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  c->add_option("--first", a->first, "Number of the first sample to show")->check(CLI::NonNegativeNumber);
  c->add_flag("--shuffle", a->sampler.shuffle, "In the order of training (data.shuffle)");
  c->add_option("--seed", a->sampler.seed, "Of that order (train.seed)")->capture_default_str();
  c->add_option(
       "--packing", a->packing,
       "As data.packing: stream, whole or whole_drop; not given: whole for conversations, else stream")
      ->check(CLI::IsMember({"stream", "whole", "whole_drop"}));
  c->add_flag("--joined", a->joined, "As with data.isolate_documents = false");
  c->add_flag("--json", a->json, "Print as JSON");
  add_example(*c, "pleat data inspect data/chat --seq-len 256 --samples 2");
  c->callback([a, &chosen] { chosen = [a] { return inspect(*a); }; });
}

}  // namespace pleat::apps
