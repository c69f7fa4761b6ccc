#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/error.h"
#include "commands/data.h"
#include "data/prepare_split.h"
#include "data/tokenizer/rank_files.h"
#include "data/tokenizer/train_bpe.h"
#include "report/format.h"

namespace pleat::apps {
namespace {

struct DataTrainTokenizerArguments {
  data::PrepareOptions read;
  data::TrainBpeOptions train;
  std::vector<std::string> special;
  std::string pattern = "gpt2", out, end_of_document;
  bool json = false;
};

// DIR of "DIR/tokenizer.json" or "DIR".
std::string folder_of(const std::string& out) {
  const std::filesystem::path path(out);
  if (path.filename() == "tokenizer.json") return path.has_parent_path() ? path.parent_path().string() : ".";
  if (path.extension() == ".json")
    base::fail("--out {}: the file is called tokenizer.json; name that, or its folder", out);
  return out;
}

int train(DataTrainTokenizerArguments& a) {
  const std::string folder = folder_of(a.out);
  data::TrainBpeOptions& o = a.train;
  if (!a.special.empty()) o.special_tokens = a.special;
  if (!a.end_of_document.empty()) o.end_of_document = a.end_of_document;
  // The token that ends documents need not be said twice.
  if (std::find(o.special_tokens.begin(), o.special_tokens.end(), o.end_of_document) ==
      o.special_tokens.end())
    o.special_tokens.insert(o.special_tokens.begin(), o.end_of_document);
  if (a.pattern != "gpt2") o.pattern = data::rank_file_family(a.pattern, 0).pattern;
  double bytes_total = 0;
  for (const std::string& path : a.read.inputs) {
    std::error_code error;
    bytes_total += double(std::filesystem::file_size(path, error));
    if (error) base::fail("{}: cannot open: {}", path, error.message());
  }
  Meter counting;
  std::optional<Meter> merging;
  o.progress = [&](const data::TrainBpeProgress& p) {
    if (p.num_tokens == 0) return;
    if (!merging) {
      counting.finish();
      merging.emplace();
    }
    merging->show(double(p.num_tokens), double(p.num_tokens_wanted),
                  fmt::format("{} of {} tokens, {} different pieces", p.num_tokens, p.num_tokens_wanted,
                              p.num_different_pieces));
  };
  data::BpeTrainer trainer(o);
  std::string document;
  int64_t documents = 0;
  data::for_each_document(
      a.read, {.on_bytes =
                   [&](int64_t bytes) {
                     counting.show(double(bytes), bytes_total,
                                   fmt::format("{} of {} counted, {}", report::format_bytes(double(bytes)),
                                               report::format_bytes(bytes_total),
                                               base::counted(documents, "document")));
                   },
               .on_piece =
                   [&](std::string_view text) {
                     if (static_cast<int64_t>(document.size() + text.size()) > a.read.max_document_bytes)
                       base::fail("document {} is longer than {} bytes; cut the text with --separator",
                                  documents, a.read.max_document_bytes);
                     document += text;
                   },
               .on_end =
                   [&](bool is_empty) {
                     if (!is_empty) trainer.add(document);
                     documents += !is_empty;
                     document.clear();
                     return true;
                   }});
  const data::TrainedBpe trained = trainer.train();
  if (merging) merging->finish();
  counting.finish();
  data::write_trained_bpe(trained, folder);
  const std::string path = (std::filesystem::path(folder) / "tokenizer.json").string();
  if (a.json) {
    const nlohmann::ordered_json out = {{"tokenizer", path},
                                        {"vocab_size", trained.vocab_size},
                                        {"merges", trained.num_merges},
                                        {"documents", documents},
                                        {"seconds", counting.seconds()}};
    fmt::print("{}\n", out.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return 0;
  }
  fmt::print("{}: {} tokens, {}, from {}\n", path, trained.vocab_size,
             base::counted(trained.num_merges, "merge"), base::counted(documents, "document"));
  if (trained.vocab_size < o.vocab_size)
    fmt::print("fewer than the {} asked for: no further pair occurs {} times\n", o.vocab_size,
               o.min_frequency);
  return 0;
}

}  // namespace

void add_data_train_tokenizer(CLI::App& command, Action& chosen) {
  auto a = std::make_shared<DataTrainTokenizerArguments>();
  CLI::App* c = &command;
  c->add_option("inputs", a->read.inputs, "Text or JSONL files")->required();
  c->add_option("--vocab-size", a->train.vocab_size, "Tokens, with the 256 bytes and the special ones")
      ->required();
  c->add_option("--out", a->out, "DIR/tokenizer.json; tokenizer_config.json is written beside it")
      ->required();
  c->add_option("--special", a->special, "A special token (repeatable); they get the first ids")
      ->allow_extra_args(false);
  c->add_option("--eod", a->end_of_document,
                "The special token that ends documents; <|endoftext|> if not given");
  c->add_option("--pattern", a->pattern, "How text is cut before merging: gpt2, llama3 or qwen")
      ->capture_default_str()
      ->check(CLI::IsMember({"gpt2", "llama3", "qwen"}));
  c->add_option("--min-frequency", a->train.min_frequency, "Pairs seen less often are not merged")
      ->capture_default_str();
  c->add_option("--separator", a->read.separator, "Cut text into documents at this string");
  c->add_option("--key", a->read.json_key, "JSONL key that holds the text")->capture_default_str();
  c->add_flag("--json", a->json, "Print the result as JSON");
  add_example(*c, "pleat data train-tokenizer corpus.jsonl --vocab-size 32000 --out model/tokenizer.json");
  c->callback([a, &chosen] { chosen = [a] { return train(*a); }; });
}

}  // namespace pleat::apps
