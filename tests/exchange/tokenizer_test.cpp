// The tokenizer travels with the model: an imported run trains and generates with the folder's own, and an
// export carries the one the model was trained with.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "data/dataset_info.h"
#include "data/tokenizer/open_tokenizer.h"
#include "exchange/exchange_support.h"
#include "exchange/export.h"
#include "exchange/import.h"
#include "exchange/model_source.h"

namespace pleat::exchange::testing {
namespace {

namespace fs = std::filesystem;

class Tokenizer : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }
  // The tokenizer of the test data, as the files of a model folder.
  void write_tokenizer(const std::string& folder, const std::string& style = "qwen") const {
    fs::create_directories(folder);
    fs::copy_file(std::string(PLEAT_SOURCE_DIR) + "/tests/data/tokenizer_data/" + style + ".json",
                  folder + "/tokenizer.json", fs::copy_options::overwrite_existing);
    std::ofstream(folder + "/tokenizer_config.json") << R"({"eos_token": "<|endoftext|>"})"
                                                     << "\n";
  }
  std::vector<std::string> short_training(const std::string& data) const {
    return {"data.train=\"" + data + "\"", "train.steps=1",    "train.seq_len=16",
            "train.micro_batch=1",         "device.threads=1", "log.tensorboard=false"};
  }
  // A model of `vocab_size` made here, without a tokenizer.
  void write_model(const std::string& name, int vocab_size) const {
    const std::string run = at(name + "-run");
    fs::create_directories(run);
    std::ofstream(run + "/config.toml")
        << "[model]\nvocab_size = " << vocab_size
        << "\nhidden_size = 32\nnum_layers = 1\nnum_heads = 4\nffn_hidden_size = 48\n[moe]\nnum_experts = 0\n"
        << "[log]\nrun_dir = \"" << run << "\"\n";
    train_run(run, short_training(write_dataset(folder_.path(), vocab_size)));
    write(run, at(name));
  }
  static ExportResult write(const std::string& run, const std::string& to) {
    return export_model({run, to, "", int64_t{1} << 30, true});
  }
  TemporaryFolder folder_;
};

TEST_F(Tokenizer, OfTheFolderIsTheRuns) {
  write_model("model", 1024);
  write_tokenizer(at("model"));
  const ImportResult imported = import_model({at("model"), at("run"), {}});
  EXPECT_EQ(imported.tokenizer_note, "");
  EXPECT_EQ(config::load(at("run/config.toml")).data.tokenizer, at("run/source"));

  const std::string hash = data::open_tokenizer(at("model"))->tokenizer_hash();
  std::ofstream(at("notes.txt")) << std::string(200, 'x') << " the quick brown fox " << std::string(200, 'y');
  train_run(at("run"), short_training(at("notes.txt")));
  const auto prepared = data::read_dataset_info(at("run/data/train"));
  ASSERT_TRUE(prepared);
  EXPECT_EQ(prepared->tokenizer_sha256, hash);
  write(at("run"), at("out"));
  EXPECT_EQ(read_file(at("out/tokenizer.json")), read_file(at("model/tokenizer.json")));

  EXPECT_EQ(open_model_source(at("run")).tokenizer, at("run/source"));
  fs::rename(at("run"), at("moved"));
  EXPECT_EQ(open_model_source(at("moved")).tokenizer, at("moved/source"));
}

TEST_F(Tokenizer, OneGivenAtTheImportIsTaken) {
  write_model("model", 1024);
  write_tokenizer(at("model"));
  write_tokenizer(at("other"), "gpt2");
  const ImportResult imported =
      import_model({at("model"), at("run"), {"data.tokenizer=\"" + at("other") + "\""}});
  EXPECT_EQ(imported.tokenizer_note, "");
  EXPECT_EQ(config::load(at("run/config.toml")).data.tokenizer, at("other"));
  EXPECT_EQ(open_model_source(at("run")).tokenizer, at("other"));
  EXPECT_TRUE(write(at("run"), at("out")).notes.empty());
  EXPECT_EQ(read_file(at("out/tokenizer.json")), read_file(at("other/tokenizer.json")));
}

TEST_F(Tokenizer, OneThatCannotBeUsedIsSaid) {
  write_model("model", 100);
  EXPECT_NE(import_model({at("model"), at("none"), {}}).tokenizer_note.find("holds no tokenizer"),
            std::string::npos);
  EXPECT_EQ(config::load(at("none/config.toml")).data.tokenizer, "byte");
  write_tokenizer(at("model"));
  EXPECT_NE(import_model({at("model"), at("small"), {}}).tokenizer_note.find("model.vocab_size = 100"),
            std::string::npos);
  std::ofstream(at("model/tokenizer.json")) << "{}";
  EXPECT_NE(import_model({at("model"), at("broken"), {}}).tokenizer_note.find("cannot be used"),
            std::string::npos);
  EXPECT_EQ(config::load(at("broken/config.toml")).data.tokenizer, at("broken/source"));
}

TEST_F(Tokenizer, OfARunFromScratchIsExported) {
  write_tokenizer(at("tok"));
  fs::create_directories(at("run"));
  std::ofstream(at("run/config.toml"))
      << "[model]\nvocab_size = 1024\nhidden_size = 32\nnum_layers = 1\nnum_heads = 4\nffn_hidden_size = 48\n"
      << "[moe]\nnum_experts = 0\n[data]\ntokenizer = \"" << at("tok") << "\"\n"
      << "[log]\nrun_dir = \"" << at("run") << "\"\n";
  std::ofstream(at("notes.txt")) << std::string(400, 'x');
  train_run(at("run"), short_training(at("notes.txt")));
  EXPECT_TRUE(write(at("run"), at("out")).notes.empty());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    EXPECT_EQ(read_file(at("out/") + name), read_file(at("tok/") + name));
  EXPECT_EQ(open_model_source(at("out")).tokenizer, at("out"));

  // The run has a copy of its own.
  const std::string text = read_file(at("tok/tokenizer.json"));
  fs::remove_all(at("tok"));
  EXPECT_TRUE(write(at("run"), at("again")).notes.empty());
  EXPECT_EQ(read_file(at("again/tokenizer.json")), text);
  fs::remove_all(at("run/tokenizer"));
  const ExportResult without = write(at("run"), at("without"));
  ASSERT_EQ(without.notes.size(), 1u);
  EXPECT_NE(without.notes[0].find("no tokenizer is written"), std::string::npos) << without.notes[0];
}

}  // namespace
}  // namespace pleat::exchange::testing
