// A new run from weights: of a run or a model folder; its own data, length, schedule and balancing; the
// source's model, biases and tokenizer.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/posix_vfs.h"
#include "checkpoint/choose.h"
#include "config/run_files.h"
#include "exchange/exchange_support.h"
#include "exchange/import.h"
#include "exchange/initial_weights.h"
#include "report/jsonl_log.h"
#include "run/origin.h"
#include "train/loop.h"
#include "train/trainer.h"

namespace pleat::exchange {
namespace {

using testing::message_of;

class Init : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }

  // A run of two steps whose routers have correction biases.
  void train_source() {
    const std::string run = at("source");
    std::filesystem::create_directories(run);
    std::ofstream(at("source.toml")) << R"(
[model]
vocab_size = 128
hidden_size = 16
num_layers = 2
num_heads = 2
[moe]
num_experts = 4
top_k = 2
ffn_hidden_size = 8
score = "sigmoid"
load_balancing = ["aux", "bias"]
aux_coef = [0.01]
[optimizer]
lr = 1e-2
[train]
steps = 3
micro_batch = 2
seq_len = 16
[checkpoint]
every = 1
[log]
tensorboard = false
[device]
threads = 1
)";
    train::run_training(config::load(at("source.toml"), {"log.run_dir=" + run, "data.train=" + data_}),
                        quiet());
  }
  static train::LoopOptions quiet() {
    train::LoopOptions o;
    o.quiet = true;
    return o;
  }
  // Without [model]: what a run from weights says itself.
  std::string new_config() {
    std::ofstream(at("new.toml"))
        << "[optimizer]\nschedule = \"constant\"\n[train]\nsteps = 1\nmicro_batch = 1\n"
           "seq_len = 32\n[data]\nshuffle = false\n[log]\ntensorboard = false\n"
           "[device]\nthreads = 1\n";
    return at("new.toml");
  }
  train::LoopResult start(const InitOptions& init, const std::string& run,
                          std::vector<std::string> sets = {}) {
    sets.insert(sets.end(), {"log.run_dir=" + at(run), "data.train=" + data_});
    const InitialWeights weights(init, new_config(), sets);
    train::LoopOptions o = quiet();
    o.write_origin = [&](const config::Config& used) { weights.write_origin(used); };
    o.write_start = [&](const config::Config& used) { weights.write(used); };
    return train::run_training(weights.config(), o);
  }
  double first_loss(const std::string& run) {
    return report::read_log(at(run) + "/metrics.jsonl").at(0).loss;
  }
  // The loss of a run's newest checkpoint on the first sequence of the data, by evaluation.
  double evaluated(const std::string& run) {
    config::Config c = config::read_record(at(run));
    c.data.valid = c.data.train = data_;
    c.train.seq_len = 32;
    c.train.micro_batch = 1;
    c.train.loss_chunk = 0;
    c.log.run_dir = at("reader");
    train::Trainer trainer(config::resolve(c));
    base::PosixVfs vfs;
    const checkpoint::Chosen chosen = checkpoint::choose(vfs, at(run) + "/checkpoints");
    for (const checkpoint::Target& t : trainer.programs().targets())
      chosen.loaded.read_tensor(t.name, t.bytes);
    return trainer.evaluate(1).loss;
  }

  testing::TemporaryFolder folder_;
  std::string data_ = testing::write_dataset(folder_.path(), 128);
};

TEST_F(Init, TheFirstStepHasTheLossOfTheSource) {
  train_source();
  const train::LoopResult result = start({at("source"), ""}, "tuned");
  EXPECT_EQ(result.step, 1);
  EXPECT_NEAR(first_loss("tuned"), evaluated("source"), 1e-6);
  const std::optional<run::Origin> origin = run::read_origin(at("tuned"));
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->step, 3);
  base::PosixVfs vfs;
  EXPECT_EQ(origin->state_sha256, checkpoint::choose(vfs, at("source/checkpoints")).loaded.state_sha256());
  const config::Config used = config::read_record(at("tuned"));
  EXPECT_EQ(used.model.hidden_size, 16);
  EXPECT_EQ(used.train.seq_len, 32);

  // Biases are carried, moments are not.
  const checkpoint::Loaded was = checkpoint::open_step(vfs, at("source/checkpoints"), 3);
  const checkpoint::Loaded begun = checkpoint::open_step(vfs, at("tuned/checkpoints"), 0);
  const auto bytes = [](const checkpoint::Loaded& from, const std::string& name) {
    std::vector<std::byte> out(size_t(from.tensor(name).length));
    from.read_tensor(name, out);
    return out;
  };
  const std::string bias = "layers.0.router.expert_bias";
  EXPECT_EQ(bytes(begun, bias), bytes(was, bias));
  EXPECT_NE(bytes(was, bias), std::vector<std::byte>(16));
  const std::vector<std::byte> moment = bytes(begun, "embedding.weight.moment1");
  EXPECT_EQ(moment, std::vector<std::byte>(moment.size()));
}

TEST_F(Init, FromAModelFolder) {
  const std::string model = testing::golden_folder("qwen3_moe");
  import_model({model, at("imported"), {}});
  data_ = testing::write_dataset(at("imported"), 128);
  testing::train_run(at("imported"), {"data.train=" + data_, "train.steps=1", "train.micro_batch=1",
                                      "train.seq_len=32", "data.shuffle=false", "device.threads=1",
                                      "optimizer.schedule=constant", "log.tensorboard=false"});
  start({model, ""}, "tuned");
  EXPECT_EQ(first_loss("tuned"), first_loss("imported"));
  EXPECT_EQ(run::read_origin(at("tuned"))->step, -1);
  EXPECT_TRUE(std::filesystem::exists(at("tuned/source/config.json")));
}

TEST_F(Init, BalancingCanBeSwitchedOff) {
  train_source();
  start({at("source"), ""}, "still", {"moe.aux_coef=[0.0]", "moe.bias_update_rate=0", "train.steps=2"});
  base::PosixVfs vfs;
  const auto bias = [&](const std::string& directory, int64_t step) {
    const checkpoint::Loaded from = checkpoint::open_step(vfs, directory, step);
    std::vector<std::byte> out(size_t(from.tensor("layers.1.router.expert_bias").length));
    from.read_tensor("layers.1.router.expert_bias", out);
    return out;
  };
  EXPECT_EQ(bias(at("still/checkpoints"), 2), bias(at("source/checkpoints"), 3));
  EXPECT_NE(message_of([&] {
              start({at("source"), ""}, "x", {"moe.load_balancing=[\"none\"]"});
            }).find("moe.bias_update_rate = 0"),
            std::string::npos);
}

TEST_F(Init, AnotherArchitectureIsRefusedByItsKeys) {
  train_source();
  const std::string message = message_of([&] {
    start({at("source"), ""}, "x", {"model.hidden_size=32", "moe.top_k=1", "model.num_layers=2"});
  });
  for (const char* word : {"model.hidden_size: 16 -> 32", "moe.top_k: 2 -> 1", "Leave these keys out"})
    EXPECT_NE(message.find(word), std::string::npos) << message;
  EXPECT_EQ(message.find("num_layers"), std::string::npos) << "it agrees";
  EXPECT_FALSE(std::filesystem::exists(at("x")));
}

TEST_F(Init, TheSameCommandGoesOnAndAnotherIsRefused) {
  train_source();
  start({at("source"), "2"}, "tuned");
  EXPECT_EQ(run::read_origin(at("tuned"))->step, 2);
  EXPECT_NE(message_of([&] {
              start({at("source"), ""}, "tuned");
            }).find("was started from"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              start({at("tuned"), ""}, "source");
            }).find("without --init"),
            std::string::npos);
  std::filesystem::remove_all(at("source"));
  EXPECT_EQ(start({at("source"), "2"}, "tuned", {"train.steps=3"}).step, 3)
      << "the source is not needed again";
}

}  // namespace
}  // namespace pleat::exchange
