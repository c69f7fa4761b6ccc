// What stands beside the weights of an export: without it a model would never stop, or nobody could talk to it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/byte_tokenizer.h"
#include "data/chat/open_chat.h"
#include "data/tokenizer/open_tokenizer.h"
#include "data/tokenizer/train_bpe.h"
#include "exchange/describe.h"
#include "exchange/exchange_support.h"
#include "exchange/export.h"
#include "exchange/import.h"
#include "exchange/jinja_template.h"
#include "exchange/model_source.h"

namespace pleat::exchange::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Companions : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }
  json read(const std::string& name) const { return json::parse(read_file(at(name))); }
  // A run of two steps from scratch.
  void train(const std::string& run, const std::string& more) const {
    fs::create_directories(at(run));
    std::ofstream(at(run + "/config.toml"))
        << "[model]\n"
        << (run == "run" && more.find("/tokens") != std::string::npos ? "vocab_size = 300\n" : "")
        << "hidden_size = 32\nnum_layers = 1\nnum_heads = 4\nffn_hidden_size = 48\n"
        << "[moe]\nnum_experts = 0\n[train]\nsteps = 2\nseq_len = 48\nmicro_batch = 1\n"
        << "[device]\nthreads = 1\n[log]\ntensorboard = false\nrun_dir = \"" << at(run) << "\"\n"
        << more;
    train_run(at(run), {});
  }
  ExportResult write(const std::string& run, const std::string& to) const {
    return export_model({at(run), at(to), "", int64_t{1} << 30, true});
  }
  std::string write_file() const {
    std::ofstream(at("notes.txt")) << std::string(300, 'x') << " über " << std::string(300, 'y');
    return at("notes.txt");
  }
  std::string write_chat() const {
    std::ofstream out(at("chat.jsonl"));
    for (int i = 0; i < 20; ++i)
      out << R"({"messages": [{"role": "user", "content": "What is next?"}, {"role": "assistant", "content": "This is."}]})"
          << "\n";
    return at("chat.jsonl");
  }
  // With the tokens of ChatML.
  void write_tokenizer(const std::string& folder) const {
    data::TrainBpeOptions o;
    o.vocab_size = 270;
    o.special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    data::BpeTrainer trainer(o);
    trainer.add("What is next? This is what is next, and this is it.");
    data::write_trained_bpe(trainer.train(), at(folder));
  }
  TemporaryFolder folder_;
};

TEST_F(Companions, AModelFromScratchSaysWhatEndsAText) {
  train("run", "[data]\ntrain = \"" + write_file() + "\"\n");
  EXPECT_TRUE(write("run", "out").notes.empty());
  EXPECT_EQ(read("out/config.json").at("eos_token_id"), 256);
  EXPECT_TRUE(read("out/config.json").at("pad_token_id").is_null()) << "the row must stay trained";
  const json generation = read("out/generation_config.json");
  EXPECT_EQ(generation.at("eos_token_id"), 256);
  EXPECT_EQ(generation.at("pad_token_id"), 256);
  const ModelSource source = open_model_source(at("out"));
  EXPECT_EQ(source.end_tokens, std::vector<int32_t>{256});
  EXPECT_EQ(source.tokenizer, at("out"));
}

TEST_F(Companions, TheByteTokenizersFileHasItsIds) {
  train("run", "[data]\ntrain = \"" + write_file() + "\"\n");
  write("run", "out");
  const auto written = data::open_tokenizer(at("out"));
  const data::ByteTokenizer bytes;
  EXPECT_EQ(written->vocab_size(), bytes.vocab_size());
  EXPECT_EQ(written->end_of_document(), bytes.end_of_document());
  std::string text;
  for (int c = 1; c < 0x80; ++c) text += static_cast<char>(c);
  text += "\r\n  \t über naïve 中文 \xf0\x9f\x98\x80 \xe2\x80\xa8 e\xcc\x81 ﬁ İ don't\n\n  end ";
  EXPECT_EQ(written->encode(text), bytes.encode(text));
  EXPECT_EQ(written->decode(bytes.encode(text)), text);
  // Every byte there is, in characters of up to four.
  std::string all;
  for (uint32_t c :
       {0x80u, 0xbfu, 0xc0u, 0x7ffu, 0x800u, 0xfffu, 0x1000u, 0xffffu - 2, 0x10000u, 0x3ffffu, 0x10ffffu}) {
    if (c < 0x800)
      all += {char(0xc0 | c >> 6), char(0x80 | (c & 63))};
    else if (c < 0x10000)
      all += {char(0xe0 | c >> 12), char(0x80 | (c >> 6 & 63)), char(0x80 | (c & 63))};
    else
      all += {char(0xf0 | c >> 18), char(0x80 | (c >> 12 & 63)), char(0x80 | (c >> 6 & 63)),
              char(0x80 | (c & 63))};
  }
  EXPECT_EQ(written->encode(all), bytes.encode(all));
  // And a run made of the export goes on with it.
  EXPECT_EQ(import_model({at("out"), at("again"), {}}).tokenizer_note, "");
}

TEST_F(Companions, AModelTrainedOnConversationsCarriesItsTemplate) {
  write_tokenizer("tok");
  train("first", "[data]\ntokenizer = \"" + at("tok") + "\"\ntrain = \"" + write_chat() +
                     "\"\n[chat]\ntemplate = \"chatml\"\n");
  train("run", "[data]\ntokenizer = \"" + at("tok") + "\"\ntrain = \"" + at("first/data/train") + "\"\n");
  EXPECT_TRUE(write("run", "out").notes.empty());
  EXPECT_EQ(read("out/config.json").at("eos_token_id"), 0);
  EXPECT_EQ(read("out/generation_config.json").at("eos_token_id"), json::array({2, 0})) << "<|im_end|> too";
  EXPECT_EQ(read_file(at("out/chat_template.jinja")), jinja_template(data::chat_preset("chatml")));
  EXPECT_EQ(read("out/tokenizer_config.json").at("chat_template"), read_file(at("out/chat_template.jinja")));
  EXPECT_EQ(read("out/tokenizer_config.json").at("eos_token"), "<|endoftext|>");

  // After an import it is the source's.
  import_model({at("out"), at("tuned"), {}});
  write("tuned", "same");
  for (const char* name :
       {"config.json", "generation_config.json", "chat_template.jinja", "tokenizer_config.json"})
    EXPECT_EQ(read_file(at("same/") + name), read_file(at("out/") + name)) << name;
}

TEST_F(Companions, IdsOfUnknownDataAreNotMadeUp) {
  train("run", "[data]\ntrain = \"" + write_dataset(folder_.path(), 300) + "\"\n");
  const ExportResult result = write("run", "out");
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_NE(result.notes[0].find("does not say what its data was tokenized with"), std::string::npos)
      << result.notes[0];
  EXPECT_TRUE(read("out/config.json").at("eos_token_id").is_null());
  EXPECT_FALSE(fs::exists(at("out/generation_config.json")));
}

TEST(DemoModel, CanBeExported) {
  const config::Config c =
      config::resolve(config::load(std::string(PLEAT_SOURCE_DIR) + "/configs/demo.toml"));
  EXPECT_EQ(describe(c).model.family->model_type, "qwen3_moe");
}

// The tokens an export's template gives are those the model was trained on.
TEST_F(Companions, TheJinjaTemplateGivesTheTokensOfTheStrings) {
  write_tokenizer("tok");
  data::ChatTemplate custom;
  custom.name = "custom";
  custom.begin = "<|endoftext|>it's \\ a\nstart ";
  custom.end = "\nthe end";
  custom.roles = {
      {"system", {"[", "]"}}, {"user", {"<|im_start|>", ""}}, {"assistant", {"\t{{ '", "<|im_end|>\n"}}};
  for (const data::ChatTemplate& t : {data::chat_preset("chatml"), data::chat_preset("plain"), custom}) {
    std::ofstream(at("tok/chat_template.jinja")) << jinja_template(t);
    const auto tokenizer = data::open_tokenizer(at("tok"));
    const auto strings = data::open_chat(t, *tokenizer),
               jinja = data::open_chat(data::chat_preset(data::kTokenizersOwn), *tokenizer);
    data::Conversation c;
    c.messages = {{.role = "system", .content = "This is it."},
                  {.role = "user", .content = "What is next?"},
                  {.role = "assistant", .content = "This {{ is }}, 'and' \\n."},
                  {.role = "user", .content = "And this?"}};
    EXPECT_EQ(jinja->encode_prompt(c, "here"), strings->encode_prompt(c, "here")) << t.name;
    c.messages.push_back({.role = "assistant", .content = "It is."});
    EXPECT_EQ(jinja->encode(c, "here").tokens, strings->encode(c, "here").tokens) << t.name;
    EXPECT_EQ(jinja->end_of_answer(), strings->end_of_answer()) << t.name;
    c.messages.push_back({.role = "judge", .content = "It is."});
    EXPECT_NE(message_of([&] { jinja->encode(c, "here"); }), "") << t.name;
  }
}

TEST(JinjaTemplate, SaysWhatTheStringsSay) {
  data::ChatTemplate t;
  t.begin = "<s>";
  t.end = "it's \\ over\n";
  t.roles["user"] = {"U: ", "\n"};
  t.roles["assistant"] = {"A: ", "</s>"};
  EXPECT_EQ(jinja_template(t),
            R"({%- if tools -%}{{- raise_exception('this template has no tools') -}}{%- endif -%}
{{- '<s>' -}}
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{{- 'A: ' + (message['content'] or '') + '</s>' -}}
{%- elif message['role'] == 'user' -%}
{{- 'U: ' + (message['content'] or '') + '\n' -}}
{%- else -%}
{{- raise_exception('this template has no role ' + message['role']) -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- 'A: ' -}}
{%- else -%}
{{- 'it\'s \\ over\n' -}}
{%- endif -%}
)");
}

}  // namespace
}  // namespace pleat::exchange::testing
