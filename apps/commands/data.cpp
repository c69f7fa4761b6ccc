#include <CLI/CLI.hpp>

#include "base/error.h"
#include "command.h"
#include "data/byte_tokenizer.h"
#include "data/indexed_dataset.h"
#include "data/prepare.h"
#include "report/format.h"

namespace pleat::apps {
namespace {

void add_prepare(CLI::App& data, Action& chosen) {
  auto o = std::make_shared<data::PrepareOptions>();
  auto split = std::make_shared<double>(0);
  CLI::App* c =
      data.add_subcommand("prepare", "Byte-level tokens of text or JSONL files as a .bin/.idx dataset");
  c->add_option("inputs", o->inputs, "Text (.txt) or JSONL (.jsonl) files")->required();
  c->add_option("--out", o->output_prefix, "Prefix of the files to write")->required();
  c->add_option("--split", *split, "Share of the training side; the rest becomes PREFIX-validation");
  c->add_option("--separator", o->separator, "Cut text into documents at this string");
  c->add_option("--key", o->json_key, "JSONL key that holds the text");
  add_example(*c, "pleat data prepare corpus.jsonl --out data/corpus --split 0.95");
  c->callback([o, split, &chosen] {
    chosen = [o, split] {
      if (*split != 0) o->split = *split;
      o->progress = [](const data::PrepareProgress& p) {
        fmt::print(stderr, "\r{} of {}, {} documents", report::format_bytes(double(p.bytes_read)),
                   report::format_bytes(double(p.bytes_total)), p.num_documents);
      };
      const data::PrepareResult r = data::prepare(*o, data::ByteTokenizer{});
      fmt::print(stderr, "\n");
      fmt::print("{}: {} documents, {} tokens\n", r.train.prefix, r.train.num_documents, r.train.num_tokens);
      if (r.validation)
        fmt::print("{}: {} documents, {} tokens\n", r.validation->prefix, r.validation->num_documents,
                   r.validation->num_tokens);
      if (r.num_empty_documents) fmt::print("{} empty documents left out\n", r.num_empty_documents);
      return 0;
    };
  });
}

// Control characters as escapes: the text of a dataset must not drive a terminal.
std::string printable(const std::string& text) {
  std::string out;
  for (const char ch : text) {
    const unsigned char b = static_cast<unsigned char>(ch);
    if (b == '\n' || (b >= 32 && b != 127))
      out += ch;
    else
      out += fmt::format("\\x{:02x}", b);
  }
  return out;
}

void add_inspect(CLI::App& data, Action& chosen) {
  auto prefix = std::make_shared<std::string>();
  auto documents = std::make_shared<int64_t>(3), tokens = std::make_shared<int64_t>(200);
  CLI::App* c =
      data.add_subcommand("inspect", "Check a .bin/.idx dataset and show how its first documents begin");
  c->add_option("prefix", *prefix, "Prefix of the files")->required();
  c->add_option("--documents", *documents, "Documents to show");
  c->add_option("--tokens", *tokens, "Tokens of each to show");
  add_example(*c, "pleat data inspect runs/demo/data/train-train");
  c->callback([=, &chosen] {
    chosen = [=] {
      const data::ByteTokenizer tokenizer;
      const data::IndexedDataset set(*prefix, tokenizer.vocab_size());
      fmt::print("{}: {} documents, {} sequences, {} tokens\n", *prefix, set.num_documents(),
                 set.num_sequences(), set.num_tokens());
      for (int64_t d = 0; d < std::min(*documents, set.num_documents()); ++d) {
        const int64_t begin = set.document_begin(d),
                      end = d + 1 < set.num_documents() ? set.document_begin(d + 1) : set.num_tokens();
        std::vector<int32_t> ids(static_cast<size_t>(std::min(*tokens, end - begin)));
        set.read(begin, ids);
        fmt::print("--- document {}: {} tokens from {}\n{}\n", d, end - begin, begin,
                   printable(tokenizer.decode(ids)));
      }
      return 0;
    };
  });
}

}  // namespace

void add_data(CLI::App& app, Action& chosen) {
  CLI::App* c = app.add_subcommand("data", "Prepare and inspect datasets");
  c->require_subcommand(1);
  add_example(*c, "pleat data prepare notes.txt --out data/notes --split 0.9");
  add_prepare(*c, chosen);
  add_inspect(*c, chosen);
}

}  // namespace pleat::apps
