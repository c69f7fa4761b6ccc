// Text through a real tokenizer: the same files for any number of threads, and a description that says how
// they were made.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "data/byte_tokenizer.h"
#include "data/data_support.h"
#include "data/indexed_dataset.h"
#include "data/prepare.h"
#include "data/tokenizer/open_tokenizer.h"

namespace pleat::data {
namespace {

const std::string kQwen = std::string(PLEAT_SOURCE_DIR) + "/tests/data/tokenizer_data/qwen.json";

std::string random_text(TestRandom& random, int num_words) {
  const char* words[] = {"the", "quick", "Fuchs", "über", "12345", "中文", "can't", "\n\n", "😀", "int x;"};
  std::string out;
  for (int i = 0; i < num_words; ++i)
    out += std::string(words[random.below(10)]) + (random.below(4) ? " " : "");
  return out;
}

TEST(Tokenize, ThreadsChangeNothing) {
  TemporaryFolder folder;
  TestRandom random(3);
  std::string lines, text;
  for (int i = 0; i < 3000; ++i) {
    std::string words = random_text(random, static_cast<int>(random.below(60)));
    for (size_t at = 0; (at = words.find('\n', at)) != std::string::npos; at += 2)
      words.replace(at, 1, "\\n");
    lines += "{\"text\": \"" + words + "\"}\n";
    text += random_text(random, static_cast<int>(random.below(120))) + "|";
  }
  write_file(folder.at("a.jsonl"), lines);
  write_file(folder.at("b.txt"), text);
  const auto tokenizer = open_tokenizer(kQwen, {.end_of_document = "<|endoftext|>"});
  for (const bool split : {false, true}) {
    std::vector<std::string> expected;
    for (const int64_t threads : {1, 2, 3, 8}) {
      PrepareOptions options = {.inputs = {folder.at("a.jsonl"), folder.at("b.txt")},
                                .separator = "|",
                                .num_threads = threads,
                                .output_prefix = folder.at("o")};
      if (split) options.split = 0.9;
      int64_t last = 0, total = 0;
      options.progress = [&](const PrepareProgress& p) {
        EXPECT_GE(p.num_documents, last);
        last = p.num_documents;
        total = p.num_tokens;
      };
      const PrepareResult result = prepare(options, *tokenizer);
      std::vector<std::string> files;
      for (const char* side : {"-train", "-validation"})
        for (const char* ending : {".bin", ".idx", ".json"})
          if (split)
            files.push_back(read_file(folder.at("o") + side + ending));
          else if (std::string_view(side) == "-train")
            files.push_back(read_file(folder.at("o") + ending));
      EXPECT_EQ(total, result.train.num_tokens + (split ? result.validation->num_tokens : 0));
      if (expected.empty())
        expected = files;
      else
        EXPECT_TRUE(files == expected) << threads << " threads";
      EXPECT_GT(result.num_empty_documents, 0);
    }
  }
}

TEST(Tokenize, DocumentsAreEncodedOneByOne) {
  TemporaryFolder folder;
  write_file(folder.at("a.txt"), "the quick|brown fox|");
  const auto tokenizer = open_tokenizer(kQwen, {.end_of_document = "<|endoftext|>"});
  const PrepareResult made = prepare({.inputs = {folder.at("a.txt")},
                                      .separator = "|",
                                      .tokenizer_path = kQwen,
                                      .num_threads = 2,
                                      .output_prefix = folder.at("o")},
                                     *tokenizer);
  std::vector<int32_t> want;
  for (const char* document : {"the quick", "brown fox"}) {
    const std::vector<int32_t> ids = tokenizer->encode(document);
    want.insert(want.end(), ids.begin(), ids.end());
    want.push_back(tokenizer->end_of_document());
  }
  const IndexedDataset set(folder.at("o"), tokenizer->vocab_size());
  std::vector<int32_t> got(static_cast<size_t>(set.num_tokens()));
  set.read(0, got);
  EXPECT_EQ(got, want);
  ASSERT_TRUE(set.info());
  const DatasetInfo& info = *set.info();
  EXPECT_EQ(info.tokenizer, kQwen);
  EXPECT_EQ(info.tokenizer_kind, "hugging_face");
  EXPECT_EQ(info.tokenizer_sha256, tokenizer->tokenizer_hash());
  EXPECT_EQ(info.vocab_size, tokenizer->vocab_size());
  EXPECT_EQ(info.end_of_document, tokenizer->end_of_document());
  EXPECT_EQ(info.num_documents, 2);
  EXPECT_EQ(info.num_tokens, made.train.num_tokens);
  EXPECT_EQ(info.num_bytes, 18);
  EXPECT_EQ(info.num_loss_tokens, std::nullopt);
  EXPECT_EQ(info.sources, (std::vector<DatasetInfo::Source>{{folder.at("a.txt"), 20}}));
  EXPECT_EQ(dataset_info_from_json(to_json(info), "x"), info);
}

// Of several faults the first one in the files is reported, whichever thread meets it.
TEST(Tokenize, TheFirstFaultIsReported) {
  TemporaryFolder folder;
  std::string lines;
  for (int i = 1; i <= 5000; ++i)
    lines += i == 3333 ? "{\"text\": 5}\n" : "{\"text\": \"the quick brown fox\"}\n";
  write_file(folder.at("a.jsonl"), lines + "{");
  const auto tokenizer = open_tokenizer(kQwen, {.end_of_document = "<|endoftext|>"});
  for (const int64_t threads : {1, 2, 5})
    expect_in(
        "a.jsonl:3333: key \"text\" holds a number", refusal([&] {
          prepare({.inputs = {folder.at("a.jsonl")}, .num_threads = threads, .output_prefix = folder.at("o")},
                  *tokenizer);
        }));
  EXPECT_EQ(folder.names().size(), 1u);
}

TEST(Tokenize, TheEndOfADocumentMustBeKnown) {
  TemporaryFolder folder;
  write_file(folder.at("a.txt"), "x");
  const auto options = PrepareOptions{.inputs = {folder.at("a.txt")}, .output_prefix = folder.at("o")};
  expect_in("which token ends a document? Its files name none; say which by --eod",
            refusal([&] { prepare(options, *open_tokenizer(kQwen)); }));
  EXPECT_EQ(open_tokenizer(kQwen, {.end_of_document = "7"})->end_of_document(), 7);
  expect_in("documents cannot end with id 9999999; ids are 0 to",
            refusal([&] { open_tokenizer(kQwen, {.end_of_document = "9999999"}); }));
  expect_in("the token \"<nope>\" that should end a document is not in it",
            refusal([&] { open_tokenizer(kQwen, {.end_of_document = "<nope>"}); }));
  const auto byte = open_tokenizer("byte", {.end_of_document = "0"});
  EXPECT_EQ(byte->end_of_document(), 0);
  EXPECT_EQ(absolute_tokenizer("byte"), "byte");
  EXPECT_EQ(absolute_tokenizer("llama3:/a/../b.model"), "llama3:/b.model");
}

TEST(Tokenize, BadDescriptionsAreRefused) {
  const DatasetInfo good = {.tokenizer = "t",
                            .tokenizer_kind = "byte",
                            .tokenizer_sha256 = std::string(64, 'a'),
                            .vocab_size = 3,
                            .num_documents = 1,
                            .num_tokens = 2,
                            .num_loss_tokens = 1};
  const std::string text = to_json(good);
  EXPECT_EQ(dataset_info_from_json(text, "p"), good);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    return refusal([&] { dataset_info_from_json(changed, "p"); });
  };
  expect_in("p: has version 2; this program reads version 1", with("\"version\": 1", "\"version\": 2"));
  expect_in("does not describe a dataset", with("pleat-dataset", "other"));
  expect_in("\"sha256\" is not 64 hex digits", with("aaaa", "aaa"));
  expect_in("\"tokens\" is -2; 0 or more", with("\"tokens\": 2", "\"tokens\": -2"));
  expect_in("\"loss_tokenz\" is not supported", with("\"loss_tokens\": 1", "\"loss_tokenz\": 1"));
  expect_in("p: ", with("{", ""));
}

}  // namespace
}  // namespace pleat::data
