// Tokenizer, text and JSONL sources, and the way from text to a dataset.
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "data/byte_tokenizer.h"
#include "data/data_support.h"
#include "data/indexed_dataset.h"
#include "data/prepare.h"
#include "data/text_source.h"

namespace pleat::data {
namespace {

using Strings = std::vector<std::string>;

Strings documents_of(DocumentSource& source) {
  Strings documents;
  std::string current;
  TextPiece piece;
  while (source.next(piece)) {
    current += piece.text;
    if (piece.ends_document) {
      documents.push_back(current);
      current.clear();
    }
  }
  EXPECT_TRUE(current.empty());
  return documents;
}

std::string decoded(const std::string& prefix, const TextTokenizer& tokenizer,
                    const std::string& document_end) {
  const IndexedDataset dataset(prefix, tokenizer.vocab_size());
  std::string text;
  for (int64_t d = 0; d < dataset.num_documents(); ++d) {
    std::vector<int32_t> tokens(
        static_cast<size_t>(dataset.document_begin(d + 1) - dataset.document_begin(d)));
    dataset.read(dataset.document_begin(d), tokens);
    EXPECT_EQ(tokens.back(), tokenizer.end_of_document());
    text += tokenizer.decode(tokens) + document_end;
  }
  return text;
}

TEST(ByteTokenizer, EveryByteRoundTrips) {
  const ByteTokenizer tokenizer;
  std::string all;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  std::vector<int32_t> tokens = tokenizer.encode(all);
  for (int b = 0; b < 256; ++b) EXPECT_EQ(tokens[static_cast<size_t>(b)], b);
  tokens.push_back(256);
  EXPECT_EQ(tokenizer.decode(tokens), all);
  EXPECT_EQ(tokenizer.vocab_size(), 257);
  EXPECT_EQ(tokenizer.end_of_document(), 256);
  EXPECT_EQ(tokenizer.name(), "byte");
  for (const int32_t bad : {257, -1})
    expect_in("id " + std::to_string(bad) + " at position 1", refusal([&] {
                (void)tokenizer.decode(std::vector<int32_t>{65, bad});
              }));
}

TEST(TextSource, WholeFileOrSplitAtASeparator) {
  TemporaryFolder folder;
  const std::string path = folder.at("t.txt");
  const auto split = [&](const std::string& text, const std::string& separator) {
    write_file(path, text);
    return documents_of(*open_text(path, separator));
  };
  EXPECT_EQ(split("a\nb\tc", ""), (Strings{"a\nb\tc"}));
  EXPECT_EQ(split("", ""), Strings{});
  EXPECT_EQ(split("", "--"), Strings{});
  EXPECT_EQ(split("one--two--three", "--"), (Strings{"one", "two", "three"}));
  EXPECT_EQ(split("one--two--", "--"), (Strings{"one", "two"}));
  EXPECT_EQ(split("--one----two-", "--"), (Strings{"", "one", "", "two-"}));
  EXPECT_EQ(split("only", "--"), (Strings{"only"}));
}

TEST(TextSource, SeparatorsAcrossBlockBoundariesAreFound) {
  TemporaryFolder folder;
  const std::string path = folder.at("t.txt");
  const size_t block = size_t{1} << 20;
  for (size_t shift = 0; shift < 8; ++shift) {
    const std::string first(block - shift, 'x'), second(2 * block + 5, 'y');
    write_file(path, first + "<eod!>" + second);
    const Strings documents = documents_of(*open_text(path, "<eod!>"));
    ASSERT_EQ(documents.size(), 2u) << shift;
    EXPECT_TRUE(documents[0] == first && documents[1] == second) << shift;
  }
  const std::string whole(3 * block, 'z');
  write_file(path, whole);
  EXPECT_TRUE(documents_of(*open_text(path, "")) == Strings{whole});
}

TEST(TextSource, JsonlDocuments) {
  TemporaryFolder folder;
  const std::string path = folder.at("t.jsonl");
  write_file(
      path,
      "{\"text\": \"one\\n\\u00e9\"}\r\n\n   \n{\"id\": [1, {\"text\": 5}], \"meta\": {\"text\": null}, "
      "\"text\": \"two\"}\n{\"text\":\"\"}\n{\"text\":\"last, no line end\"}");
  EXPECT_EQ(documents_of(*open_jsonl(path, {})), (Strings{"one\n\xc3\xa9", "two", "", "last, no line end"}));
  write_file(path, "{\"body\":\"x\",\"text\":1}");
  EXPECT_EQ(documents_of(*open_jsonl(path, {.key = "body"})), Strings{"x"});
  const std::string big(3 << 20, 'q');
  write_file(path, "{\"text\":\"" + big + "\"}\n{\"text\":\"b\"}\n");
  EXPECT_TRUE(documents_of(*open_jsonl(path, {})) == (Strings{big, "b"}));
}

TEST(TextSource, BadJsonlNamesFileLineAndReason) {
  TemporaryFolder folder;
  const std::string path = folder.at("t.jsonl");
  struct Case {
    std::string line;
    const char* message;
  };
  const std::string nested(100000, '[');
  const Case cases[] = {
      {"{\"text\": \"unfinished", "broken JSON at column"},
      {"{\"text\": \"a\"} trailing", "broken JSON at column"},
      {"{\"text\": \"a\",}", "broken JSON at column"},
      {"{\"text\": \"\xff\"}", "broken JSON at column"},
      {"{\"text\": \"\\ud800\"}", "broken JSON at column"},
      {"{\"n\": 1e999, \"text\": \"a\"}", "broken JSON at column"},
      {"{\"Text\": \"a\"}", "the object has no key \"text\""},
      {"{}", "the object has no key \"text\""},
      {"{\"a\": {\"text\": \"inner\"}}", "the object has no key \"text\""},
      {"{\"text\": 5}", "key \"text\" holds a number; a string is needed"},
      {"{\"text\": -5.5}", "holds a number"},
      {"{\"text\": null}", "holds null"},
      {"{\"text\": true}", "holds a boolean"},
      {"{\"text\": [\"a\"]}", "holds an array"},
      {"{\"text\": {\"a\": 1}}", "holds an object"},
      {"{\"text\": \"a\", \"text\": \"b\"}", "key \"text\" appears twice"},
      {"[\"text\"]", "the line is an array; a JSON object is needed"},
      {"\"text\"", "the line is a string"},
      {"17", "the line is a number"},
      {"{\"a\": " + nested, "JSON nests deeper than 32 levels"},
  };
  for (const Case& c : cases) {
    write_file(path, "{\"text\": \"fine\"}\n\n" + c.line + "\n");
    const std::string message = refusal([&] { documents_of(*open_jsonl(path, {})); });
    expect_in(path + ":3: ", message);
    expect_in(c.message, message);
    EXPECT_LT(message.size(), 400u);
  }
  write_file(path, "{\"text\": \"" + std::string(100, 'x') + "\"}");
  expect_in(":1: line is longer than 50 bytes",
            refusal([&] { documents_of(*open_jsonl(path, {.key = "text", .max_line_bytes = 50})); }));
  expect_in("key is empty", refusal([&] { open_jsonl(path, {.key = ""}); }));
  expect_in("not a regular file", refusal([&] { open_text("/dev/null", ""); }));
  expect_in("cannot open", refusal([&] { open_text(folder.at("none"), ""); }));
}

TEST(Prepare, TextAndJsonlTogether) {
  TemporaryFolder folder;
  write_file(folder.at("a.txt"), "alpha##beta####gamma");
  write_file(folder.at("b.jsonl"), "{\"text\":\"delta\"}\n{\"text\":\"\"}\n{\"text\":\"epsilon\"}\n");
  PrepareOptions options;
  options.inputs = {folder.at("a.txt"), folder.at("b.jsonl")};
  options.separator = "##";
  options.output_prefix = folder.at("out");
  PrepareProgress last;
  options.progress = [&](const PrepareProgress& p) { last = p; };
  const ByteTokenizer tokenizer;
  const PrepareResult result = prepare(options, tokenizer);
  EXPECT_EQ(decoded(folder.at("out"), tokenizer, "|"), "alpha|beta|gamma|delta|epsilon|");
  EXPECT_EQ(result.train.num_documents, 5);
  EXPECT_EQ(result.train.num_text_bytes, 26);
  EXPECT_EQ(result.train.num_tokens, 31);
  EXPECT_EQ(result.num_empty_documents, 2);
  EXPECT_FALSE(result.validation.has_value());
  EXPECT_EQ(last.bytes_read, last.bytes_total);
  EXPECT_EQ(last.num_documents, 5);
  EXPECT_EQ(folder.names(), (Strings{"a.txt", "b.jsonl", "out.bin", "out.idx", "out.json"}));
}

TEST(Prepare, OneBigDocumentIsCutByBytes) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 300000; ++i) text += static_cast<char>('a' + i * 7 % 26);
  write_file(folder.at("a.txt"), text);
  const PrepareOptions options = {
      .inputs = {folder.at("a.txt")}, .output_prefix = folder.at("out"), .split = 0.95};
  const ByteTokenizer tokenizer;
  const PrepareResult result = prepare(options, tokenizer);
  EXPECT_TRUE(result.cut_by_bytes);
  EXPECT_EQ(result.train.prefix, folder.at("out-train"));
  EXPECT_EQ(result.train.num_text_bytes, 285000);
  EXPECT_EQ(result.validation.value().num_text_bytes, 15000);
  EXPECT_EQ(result.validation->prefix, folder.at("out-validation"));
  EXPECT_TRUE(decoded(result.train.prefix, tokenizer, "") == text.substr(0, 285000));
  EXPECT_TRUE(decoded(result.validation->prefix, tokenizer, "") == text.substr(285000));
}

TEST(Prepare, TheCutKeepsCharactersWhole) {
  TemporaryFolder folder;
  const std::string snowman = "\xe2\x98\x83";
  std::string text;
  for (int i = 0; i < 100; ++i) text += snowman;
  const ByteTokenizer tokenizer;
  for (const double split : {0.50, 0.503, 0.507, 0.51}) {  // bytes 150 to 153
    write_file(folder.at("a.txt"), text);
    const PrepareResult result = prepare(
        {.inputs = {folder.at("a.txt")}, .output_prefix = folder.at("out"), .split = split}, tokenizer);
    EXPECT_EQ(result.train.num_text_bytes % 3, 0);
    EXPECT_GE(result.train.num_text_bytes, static_cast<int64_t>(split * 300));
    EXPECT_LT(result.train.num_text_bytes, static_cast<int64_t>(split * 300) + 3);
    EXPECT_EQ(result.train.num_text_bytes + result.validation.value().num_text_bytes, 300);
  }
}

TEST(Prepare, AFewDocumentsAreCutByBytesToo) {
  TemporaryFolder folder;
  write_file(folder.at("a.txt"), "0123456789|abcdefghij|ABCDEFGHIJ");
  const PrepareOptions options = {
      .inputs = {folder.at("a.txt")}, .separator = "|", .output_prefix = folder.at("o"), .split = 0.5};
  const ByteTokenizer tokenizer;
  const PrepareResult result = prepare(options, tokenizer);
  EXPECT_EQ(decoded(result.train.prefix, tokenizer, "|"), "0123456789|abcde|");
  EXPECT_EQ(decoded(result.validation.value().prefix, tokenizer, "|"), "fghij|ABCDEFGHIJ|");
  // A cut between two documents splits none.
  PrepareOptions between = options;
  between.split = 2.0 / 3.0 + 1e-9;
  const PrepareResult clean = prepare(between, tokenizer);
  EXPECT_EQ(decoded(clean.train.prefix, tokenizer, "|"), "0123456789|abcdefghij|");
  EXPECT_EQ(decoded(clean.validation.value().prefix, tokenizer, "|"), "ABCDEFGHIJ|");
}

TEST(Prepare, ManyDocumentsAreSplitWhole) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += "document " + std::to_string(i) + "\n";
  write_file(folder.at("a.txt"), text);
  const ByteTokenizer tokenizer;
  const PrepareResult result = prepare(
      {.inputs = {folder.at("a.txt")}, .separator = "\n", .output_prefix = folder.at("o"), .split = 0.95},
      tokenizer);
  EXPECT_FALSE(result.cut_by_bytes);
  EXPECT_EQ(result.train.num_documents, 380);
  EXPECT_EQ(result.validation.value().num_documents, 20);
  const std::string validation = decoded(result.validation->prefix, tokenizer, "\n");
  std::string expected;
  for (int i = 19; i < 400; i += 20) expected += "document " + std::to_string(i) + "\n";
  EXPECT_EQ(validation, expected);
}

// Encodes a whole document to one id, its length: must see documents whole.
class WholeTokenizer final : public TextTokenizer {
 public:
  std::string name() const override { return "whole"; }
  std::string kind() const override { return "whole"; }
  std::string tokenizer_hash() const override { return std::string(64, '0'); }
  int64_t vocab_size() const override { return 100'000'000; }
  std::optional<int32_t> id_of(std::string_view) const override { return std::nullopt; }
  std::vector<SpecialToken> special_tokens() const override { return {}; }
  using TextTokenizer::decode;
  using TextTokenizer::encode;
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions&) const override {
    return {static_cast<int32_t>(text.size())};
  }
  std::string decode(std::span<const int32_t>, const DecodeOptions&) const override { return {}; }

 protected:
  std::optional<int32_t> own_end_of_document() const override { return 0; }
};

TEST(Prepare, TokenizersThatNeedWholeDocumentsGetThem) {
  TemporaryFolder folder;
  write_file(folder.at("a.txt"), std::string(3 << 20, 'x') + "|" + std::string(10, 'y'));
  PrepareOptions options = {
      .inputs = {folder.at("a.txt")}, .separator = "|", .output_prefix = folder.at("o")};
  EXPECT_EQ(prepare(options, WholeTokenizer()).train.num_tokens, 4);
  const IndexedDataset dataset(folder.at("o"), 100'000'000);
  std::vector<int32_t> tokens(4);
  dataset.read(0, tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{3 << 20, 0, 10, 0}));
  options.max_document_bytes = 1000;
  expect_in("document 0 is longer than 1000 bytes, and tokenizer whole needs a document at once",
            refusal([&] { prepare(options, WholeTokenizer()); }));
}

TEST(Prepare, BadInputIsRefusedAndLeavesNothing) {
  TemporaryFolder folder;
  const ByteTokenizer tokenizer;
  const auto message = [&](PrepareOptions options) {
    options.output_prefix = folder.at("out");
    return refusal([&] { prepare(options, tokenizer); });
  };
  write_file(folder.at("a.txt"), "x");
  write_file(folder.at("empty.txt"), "");
  write_file(folder.at("bad.jsonl"), "{\"text\":\"fine\"}\n{\n");
  write_file(folder.at("c.txt.gz"), "x");
  write_file(folder.at("d.json"), "{}");
  expect_in("no input file", message({}));
  expect_in("cannot open", message({.inputs = {folder.at("a.txt"), folder.at("missing.txt")}}));
  expect_in("hold no text", message({.inputs = {folder.at("empty.txt")}}));
  expect_in("bad.jsonl:2: broken JSON", message({.inputs = {folder.at("a.txt"), folder.at("bad.jsonl")}}));
  expect_in("does not begin as a gzip file", message({.inputs = {folder.at("c.txt.gz")}}));
  expect_in("d.json:1: the object has no key", message({.inputs = {folder.at("d.json")}}));
  expect_in("leaves one side empty", message({.inputs = {folder.at("a.txt")}, .split = 0.5}));
  for (const double bad : {0.0, 1.0, -1.0, 2.0, std::numeric_limits<double>::quiet_NaN()})
    expect_in("must lie strictly between 0 and 1", message({.inputs = {folder.at("a.txt")}, .split = bad}));
  EXPECT_EQ(folder.names().size(), 5u);
}

}  // namespace
}  // namespace pleat::data
