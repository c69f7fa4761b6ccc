// Training on whole conversations: the loss is that of the conversations one by one, padding has no effect on
// any weight, a stopped run goes on with the same bits, and ranks change nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/posix_vfs.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "data/byte_tokenizer.h"
#include "data/chat/chat_template.h"
#include "data/indexed_dataset.h"
#include "data/prepare.h"
#include "resume/ranks_support.h"
#include "resume/resume_support.h"
#include "train/loop.h"

namespace pleat::train {
namespace {

using pleat::testing::write_file;

std::string conversation(const std::string& question, const std::string& answer) {
  return fmt::format(
      "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{}\"}}, {{\"role\": \"assistant\", \"content\": "
      "\"{}\"}}]}}\n",
      question, answer);
}

class WholeConversations : public ::testing::Test {
 protected:
  // One conversation per line, as a dataset; returns the lengths in tokens.
  void write_chat(const std::string& name, const std::string& lines) {
    write_file(folder_.at(name + ".jsonl"), lines);
    data::prepare({.inputs = {folder_.at(name + ".jsonl")},
                   .chat = data::chat_preset("plain"),
                   .output_prefix = folder_.at(name)},
                  data::ByteTokenizer{});
  }

  config::Config config(const std::string& data, int64_t steps, std::vector<std::string> more) {
    more.insert(more.begin(),
                {"data.train=" + folder_.at(data), "data.packing=whole", "model.vocab_size=264"});
    return testing::resolved_config(folder_, steps, more);
  }

  checkpoint::Loaded saved(const checkpoint::StateView& state) {
    const std::string directory = folder_.at("checkpoints");
    std::filesystem::remove_all(directory);
    std::filesystem::create_directories(directory);
    checkpoint::save(vfs_, directory, state, {});
    return *checkpoint::find_newest(vfs_, directory).newest;
  }

  testing::TemporaryFolder folder_;
  base::PosixVfs vfs_;
};

const std::vector<std::string> kWide = {"model.dtype=float64", "moe.router_dtype=float64"};

std::vector<std::string> with(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_F(WholeConversations, LossIsThatOfEachByItself) {
  std::string lines;
  double sum = 0;
  int64_t tokens = 0;
  for (int i = 0; i < 7; ++i) {
    const std::string line = conversation("q" + std::string(static_cast<size_t>(3 * i), 'x'),
                                          "a" + std::string(static_cast<size_t>((5 * i) % 11), 'y'));
    lines += line;
    const std::string name = fmt::format("one{}", i);
    write_chat(name, line);
    // In a sequence of exactly its length: nothing beside it, nothing behind it.
    const int64_t length = data::IndexedDataset(folder_.at(name), 264).num_tokens();
    config::Config own = config(name, 4,
                                with(kWide, {fmt::format("train.seq_len={}", length), "train.micro_batch=1",
                                             "data.valid=" + folder_.at(name)}));
    const EvalOutcome out = Trainer(own).evaluate(0);
    sum += out.loss * static_cast<double>(out.tokens);
    tokens += out.tokens;
  }
  write_chat("all", lines);
  config::Config packed = config(
      "all", 4, with(kWide, {"train.seq_len=96", "train.micro_batch=1", "data.valid=" + folder_.at("all")}));
  Trainer trainer(packed);
  const data::WholeDocuments& whole = *trainer.train_data().sampler(0).whole_documents();
  EXPECT_GT(whole.num_documents(), whole.num_sequences());
  EXPECT_LT(whole.filled(), 1) << "there is padding to be ignored";
  const EvalOutcome out = trainer.evaluate(0);
  EXPECT_EQ(out.tokens, tokens);
  EXPECT_NEAR(out.loss, sum / static_cast<double>(tokens), 1e-12);
}

// Six conversations of more than half a sequence stand alone, each before much padding; in sequences of twice
// the length two of them stand together. The step is the same: loss, auxiliary losses of each kind, weights.
TEST_F(WholeConversations, PaddingHasNoEffectOnAStep) {
  std::string lines;
  for (int i = 0; i < 6; ++i)
    lines += conversation("q" + std::string(static_cast<size_t>(i), 'x'),
                          "ab" + std::string(static_cast<size_t>(9 - i), 'y'));
  write_chat("c", lines);
  const std::vector<std::string> router = {"moe.load_balancing=[\"aux\", \"seq_aux\"]",
                                           "moe.aux_coef=[0.01, 0.02]",
                                           "moe.bias_update_rate=",
                                           "moe.input_jitter=",

                                           "train.num_microbatches=1",
                                           "optimizer.warmup_steps=0"};
  const auto step = [&](int64_t seq_len, int64_t micro_batch) {
    config::Config c = config("c", 4,
                              with(with(kWide, router), {fmt::format("train.seq_len={}", seq_len),
                                                         fmt::format("train.micro_batch={}", micro_batch)}));
    auto trainer = std::make_unique<Trainer>(c);
    EXPECT_EQ(trainer->train_data().sampler(0).num_samples_per_epoch(), micro_batch);
    report::StepRecord record = trainer->step().record;
    return std::pair{std::move(trainer), record};
  };
  const auto [alone, a] = step(40, 6);
  const auto [paired, b] = step(80, 3);
  EXPECT_NEAR(a.loss, b.loss, 1e-12);
  EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-10 * a.grad_norm);
  ASSERT_EQ(a.aux.size(), b.aux.size());
  for (const auto& [name, value] : a.aux) EXPECT_NEAR(value, b.aux.at(name), 1e-12) << name;
  const testing::Tensors left = testing::tensors_of(*alone), right = testing::tensors_of(*paired);
  for (const auto& [name, bytes] : left) {
    const auto& others = right.at(name);
    ASSERT_EQ(bytes.size(), others.size());
    if (bytes.size() % sizeof(double) != 0) continue;
    double worst = 0, x = 0, y = 0;
    for (size_t i = 0; i < bytes.size(); i += sizeof(double)) {
      std::memcpy(&x, &bytes[i], sizeof x);
      std::memcpy(&y, &others[i], sizeof y);
      worst = std::max(worst, std::abs(x - y));
    }
    EXPECT_LT(worst, 1e-7) << name;  // the first step of AdamW divides a gradient by its own size
  }
}

std::string many_conversations() {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += conversation(fmt::format("say {}", i * i),
                          std::string(static_cast<size_t>(1 + i * 7 % 23), 'a' + i % 26));
  return lines;
}

TEST_F(WholeConversations, StoppedInAnEpochTheyGoOnWithTheSameBits) {
  write_chat("c", many_conversations());
  const config::Config c = config("c", 12, {"train.seq_len=64"});
  const auto digests = [](Trainer& trainer, int64_t num_steps) {
    std::vector<std::string> out;
    for (int64_t i = 0; i < num_steps; ++i) trainer.step(), out.push_back(trainer.state_sha256());
    return out;
  };
  Trainer undisturbed(c);
  const std::vector<std::string> expected = digests(undisturbed, 12);
  ASSERT_GT(undisturbed.run_state().data.sources[0].epoch, 0);
  for (const int64_t stop : {3, 9}) {
    Trainer first(c);
    digests(first, stop);
    Trainer second(c);
    second.restore(saved(first.state()));
    EXPECT_GT(second.run_state().data.sources[0].next_sample, 0);
    EXPECT_EQ(digests(second, 12 - stop), std::vector<std::string>(expected.begin() + stop, expected.end()));
  }
  // Another packing would put other samples at the position.
  Trainer cut(config("c", 12, {"train.seq_len=64", "data.packing=stream"}));
  try {
    cut.restore(saved(undisturbed.state()));
    FAIL() << "accepted";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("data.packing"), std::string::npos) << e.what();
  }
}

TEST_F(WholeConversations, DataRanksChangeNothing) {
  write_chat("c", many_conversations());
  const auto losses = [&](int num_ranks) {
    const config::Config c = config(
        "c", 3, with(kWide, {"train.seq_len=64", "train.num_microbatches=4", "moe.bias_update_rate=0.01"}));
    std::vector<double> out;
    testing::Ranks ranks(c, num_ranks);
    ranks.each([&](runtime::Crew& crew) {
      Trainer trainer(c, {}, {}, &crew);
      for (int i = 0; i < 3; ++i) {
        const StepOutcome step = trainer.step();
        if (crew.leads()) out.push_back(step.record.loss), out.push_back(step.record.grad_norm);
      }
    });
    return out;
  };
  const std::vector<double> one = losses(1), two = losses(2);
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], two[i], 1e-10) << i;
}

// Straight from the file: prepared once, kept whole without being asked, prepared again when it changed.
TEST_F(WholeConversations, AJsonlFileTrainsAsItStands) {
  write_file(folder_.at("chat.jsonl"), many_conversations());
  LoopOptions quiet;
  quiet.quiet = true;
  const auto asked = [&](std::vector<std::string> sets, int64_t steps = 6) {
    return config::parse(testing::run_toml(folder_.at("chat.jsonl"), folder_.at("out"), steps),
                         with({"chat.template=plain", "train.seq_len=64", "data.valid_split=0.1"}, sets));
  };
  const config::Config prepared = with_prepared_data(asked({}), {.quiet = true});
  EXPECT_EQ(prepared.data.packing, "whole");
  EXPECT_EQ(with_prepared_data(asked({"data.packing=stream"}), {.quiet = true}).data.packing, "stream");
  EXPECT_EQ(with_prepared_data(asked({"data.isolate_documents=false"}), {.quiet = true}).data.packing,
            "stream");
  EXPECT_EQ(run_training(asked({}), quiet).code, base::ExitCode::Done);
  const auto made = std::filesystem::last_write_time(folder_.at("out/data/train-train.idx"));
  with_prepared_data(asked({}), {.quiet = true});
  EXPECT_EQ(std::filesystem::last_write_time(folder_.at("out/data/train-train.idx")), made)
      << "prepared once";
  write_file(folder_.at("chat.jsonl"), many_conversations() + conversation("one", "more"));
  const int64_t before = data::IndexedDataset(prepared.data.train, 264).num_tokens();
  const config::Config again = with_prepared_data(asked({}), {.quiet = true});
  EXPECT_GT(data::IndexedDataset(again.data.train, 264).num_tokens(), before);
  EXPECT_EQ(data::IndexedDataset(prepared.data.train, 264).num_tokens(), before)
      << "the run was trained on it";
}

}  // namespace
}  // namespace pleat::train
