// A run that was trained on a GPU in bf16, used on the CPU: every command takes its weights for what they
// are, and a resume goes on from the wide ones.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/posix_vfs.h"
#include "base/sim_vfs.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "exchange/exchange_support.h"
#include "exchange/export.h"
#include "exchange/model_source.h"
#include "infer/evaluate.h"
#include "infer/generate.h"
#include "safetensors/convert.h"
#include "tensor/halves.h"
#include "train/restore_state.h"
#include "train/trainer.h"

namespace pleat::exchange::testing {
namespace {

using safetensors::ElementType;
using tensor::Dtype;

constexpr const char* kModel = R"([model]
vocab_size = 40
hidden_size = 16
num_layers = 2
num_heads = 2
num_kv_heads = 1
head_dim = 8

[moe]
num_experts = 4
top_k = 2
ffn_hidden_size = 8
load_balancing = ["aux"]
aux_coef = [0.01]

[optimizer]
lr = 1e-2

[train]
seq_len = 16
micro_batch = 2
steps = 3

[data]
tokenizer = "byte"

[log]
tensorboard = false
)";
// What a run on a GPU has in its config beside.
const std::vector<std::string> kNarrow = {"model.dtype=bfloat16",
                                          "device.kind=cuda",
                                          "device.graph=true",
                                          "device.deterministic_attention=true",
                                          "optimizer.grad_dtype=bfloat16",
                                          "optimizer.moment_dtype=bfloat16"};

struct Tensor {
  Dtype dtype = Dtype::F32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};
using State = std::map<std::string, Tensor>;

Tensor in_type(const Tensor& t, Dtype dtype) {
  std::vector<float> numbers(t.bytes.size() / static_cast<size_t>(tensor::size_of(t.dtype)));
  safetensors::decode(safetensors::element_type_of(t.dtype), t.bytes, std::span(numbers));
  Tensor out{dtype, t.shape, {}};
  out.bytes.resize(numbers.size() * static_cast<size_t>(tensor::size_of(dtype)));
  safetensors::encode(safetensors::element_type_of(dtype), std::span<const float>(numbers), out.bytes);
  return out;
}

// One half of float32 numbers (tensor/halves.h).
Tensor half(const Tensor& t, Dtype dtype) {
  Tensor out{dtype, t.shape, std::vector<std::byte>(t.bytes.size() / 2)};
  for (size_t i = 0; i < t.bytes.size() / sizeof(float); ++i) {
    const tensor::Halves halves = tensor::split(reinterpret_cast<const float*>(t.bytes.data())[i]);
    if (dtype == Dtype::BF16)
      reinterpret_cast<uint16_t*>(out.bytes.data())[i] = halves.high;
    else
      reinterpret_cast<int16_t*>(out.bytes.data())[i] = halves.rest;
  }
  return out;
}

bool is_moment(const std::string& name) { return name.ends_with(".moment1") || name.ends_with(".moment2"); }
bool is_weight(const std::string& name) { return !is_moment(name); }

// Three runs that hold the same three steps: `wide` as a CPU left it, `narrow` as a GPU in bf16 would have
// (bf16 weights and their rests, bf16 moments), `rounded` with the narrow weights in float32.
class NarrowRun : public ::testing::Test {
 protected:
  void SetUp() override {
    data_ = write_dataset(folder_.path(), 40);
    const std::string wide = at("wide");
    std::filesystem::create_directories(wide);
    std::ofstream(wide + "/config.toml") << kModel;
    train_run(wide, {"data.train=\"" + data_ + "\"", "log.run_dir=\"" + wide + "\"", "device.threads=1"});
    const checkpoint::Found found = checkpoint::find_newest(vfs_, wide + "/checkpoints");
    PLEAT_CHECK(found.newest, "no checkpoint");
    for (const checkpoint::TensorEntry& e : found.newest->manifest().tensors) {
      Tensor& t = wide_[e.name] = {e.dtype, e.shape, {}};
      t.bytes.resize(static_cast<size_t>(e.length));
      found.newest->read_tensor(e.name, t.bytes);
    }
    State& narrow = narrow_;
    State rounded;
    for (const auto& [name, t] : wide_) {
      narrow[name] = rounded[name] = t;
      if (is_moment(name)) narrow[name] = in_type(t, Dtype::BF16);
      if (!is_weight(name)) continue;
      narrow[name] = half(t, Dtype::BF16);
      narrow[name + model::kRest] = half(t, Dtype::I16);
      rounded[name] = in_type(narrow[name], Dtype::F32);
    }
    write_run("narrow", *found.newest, narrow, kNarrow);
    write_run("rounded", *found.newest, rounded, {});
  }

  void write_run(const std::string& name, const checkpoint::Loaded& like, const State& state,
                 std::vector<std::string> sets) {
    std::filesystem::create_directories(at(name) + "/checkpoints");
    sets.push_back("log.run_dir=\"" + at(name) + "\"");
    sets.push_back("checkpoint.dir=\"" + at(name) + "/checkpoints\"");
    const std::string toml = config::to_toml(config::parse(like.text("config"), sets, name));
    std::ofstream(at(name) + "/config.toml") << toml;
    checkpoint::StateView view = view_of(like, state);
    view.texts["config"] = toml;
    checkpoint::save(vfs_, at(name) + "/checkpoints", view, {});
  }

  static checkpoint::StateView view_of(const checkpoint::Loaded& like, const State& state) {
    checkpoint::StateView view;
    view.step = like.step();
    view.integers = like.manifest().integers;
    view.texts = like.manifest().texts;
    for (const auto& [tensor, t] : state) view.tensors.push_back({tensor, t.dtype, t.shape, t.bytes});
    return view;
  }

  checkpoint::Loaded narrow_checkpoint() {
    const checkpoint::Found found = checkpoint::find_newest(vfs_, at("narrow") + "/checkpoints");
    PLEAT_CHECK(found.newest, "no checkpoint");
    return *found.newest;
  }
  train::Trainer trainer_in_float32() {
    return train::Trainer(config::resolve(config::load(
        at("narrow") + "/config.toml", {"device.kind=cpu", "model.dtype=float32", "device.threads=1"})));
  }

  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }

  TemporaryFolder folder_;
  base::PosixVfs vfs_;
  std::string data_;
  State wide_, narrow_;
};

ModelSourceOptions one_thread(const std::string& dtype = "") {
  ModelSourceOptions o;
  o.threads = 1;
  o.dtype = dtype;
  return o;
}

TEST_F(NarrowRun, WeightsAreWidenedWhereTheyAreLoaded) {
  for (const char* dtype : {"", "float32", "float64"}) {
    SCOPED_TRACE(dtype);
    const ModelSource source = open_model_source(at("narrow"), one_thread(dtype));
    EXPECT_EQ(source.config.device.kind, "cpu");
    EXPECT_EQ(source.config.model.dtype, *dtype ? dtype : "float32");
    infer::InferenceChoice choice;
    choice.score_tokens = 32;
    infer::Inference model(source.config, choice);
    source.load(model);
    int num_weights = 0;
    for (const checkpoint::Target& t : model.weights()) {
      Tensor want = wide_.at(t.name);
      if (is_weight(t.name)) want = in_type(half(want, Dtype::BF16), t.dtype), ++num_weights;
      ASSERT_EQ(t.dtype, want.dtype) << t.name;
      EXPECT_EQ(t.bytes.copy(), want.bytes) << t.name;
    }
    EXPECT_GT(num_weights, 10);
  }
}

TEST_F(NarrowRun, EvalAndGenerateGiveWhatItsWeightsGive) {
  const std::vector<int32_t> text = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
  std::vector<std::vector<int32_t>> drawn;
  std::vector<double> scores;
  for (const char* run : {"narrow", "rounded", "wide"}) {
    const ModelSource source = open_model_source(at(run), one_thread());
    infer::InferenceChoice choice;
    choice.num_sequences = 1;
    choice.max_length = 16;
    infer::Inference decoder(source.config, choice);
    source.load(decoder);
    infer::GenerateOptions options;
    options.max_tokens = 12;
    drawn.push_back(infer::generate(*infer::make_next_token(decoder), {{7, 11}}, options).at(0).tokens);
    infer::InferenceChoice scoring;
    scoring.score_tokens = 32;
    infer::Inference scorer(source.config, scoring);
    source.load(scorer);
    const infer::ScoreRequest request{text, 1};
    scores.push_back(infer::score(scorer, std::span(&request, 1)).at(0).log_likelihood);
  }
  EXPECT_EQ(drawn[0], drawn[1]);
  EXPECT_EQ(scores[0], scores[1]);
  EXPECT_NE(scores[0], scores[2]) << "rounding that changes nothing tests nothing";
  EXPECT_NEAR(scores[0], scores[2], 0.05 * std::abs(scores[2]));
}

TEST_F(NarrowRun, ExportWritesItsWeights) {
  for (const char* run : {"narrow", "rounded"}) {
    ExportOptions o;
    o.run_folder = at(run);
    o.model_folder = at(std::string(run) + "-model");
    o.dtype = "f32";
    o.check = true;
    export_model(o);
  }
  EXPECT_EQ(tensors_of(at("narrow-model")), tensors_of(at("rounded-model")));
}

TEST_F(NarrowRun, ResumesInFloat32FromTheWideWeights) {
  train::Trainer trainer = trainer_in_float32();
  const std::vector<std::string> differences = trainer.restore(narrow_checkpoint());
  EXPECT_NE(std::find(differences.begin(), differences.end(), "model.dtype: \"bfloat16\" -> \"float32\""),
            differences.end());
  EXPECT_EQ(trainer.run_state().step, 3);
  int num_tensors = 0;
  for (const checkpoint::TensorRef& t : trainer.programs().tensors()) {
    const Tensor& want = wide_.at(t.name);
    const Tensor kept = is_moment(t.name) ? in_type(in_type(want, Dtype::BF16), Dtype::F32) : want;
    EXPECT_EQ(t.bytes.copy(), kept.bytes) << t.name;
    ++num_tensors;
  }
  EXPECT_EQ(num_tensors, static_cast<int>(wide_.size()));
  EXPECT_TRUE(trainer.step().committed);
}

// No bit of a weight, of its rest or of a moment can change, in any tensor, without another digest, and another state
// behind a resume.
TEST_F(NarrowRun, EveryBitOfEveryTensorIsNoticed) {
  const checkpoint::Loaded like = narrow_checkpoint();
  train::Trainer trainer = trainer_in_float32();
  base::SimVfs memory;
  std::set<std::string> digests, states;
  const auto add = [&](bool resume) {
    const checkpoint::StateView view = view_of(like, narrow_);
    EXPECT_TRUE(digests.insert(checkpoint::state_sha256(view)).second);
    if (!resume) return;
    const std::string folder = fmt::format("run{}", states.size());
    trainer.restore(checkpoint::open(memory, checkpoint::save(memory, folder, view, {}).path));
    EXPECT_TRUE(states.insert(trainer.state_sha256()).second);
  };
  add(true);
  std::map<Dtype, int> num_tensors;
  for (auto& [name, t] : narrow_) {
    SCOPED_TRACE(name);
    ++num_tensors[t.dtype];
    // Every bit of 16, each in an element of its own; the least and the sign are resumed from too.
    ASSERT_GE(t.bytes.size(), 32u);
    for (size_t bit = 0; bit < 16; ++bit) {
      std::byte& at = t.bytes[t.bytes.size() * bit / 16 / 2 * 2 + bit / 8];
      at ^= std::byte{1} << (bit % 8);
      add(bit == 0 || bit == 15);
      at ^= std::byte{1} << (bit % 8);
    }
  }
  const int num_weights = num_tensors[Dtype::I16];
  EXPECT_GT(num_weights, 10);
  EXPECT_EQ(num_tensors[Dtype::BF16], 3 * num_weights) << "weights and two moments";
  EXPECT_EQ(num_tensors.size(), 2u);
}

// As Resume.EverySingleTensorAndCounterMatters for state in bf16: one tensor put back to its first value, and the
// future changes.
TEST_F(NarrowRun, EverySingleTensorMatters) {
  const checkpoint::Loaded like = narrow_checkpoint();
  train::Trainer trainer = trainer_in_float32();
  State initial;
  for (const checkpoint::TensorRef& t : trainer.state().tensors) {
    const Tensor wide{t.dtype, t.shape, t.bytes.copy()};
    initial[t.name] = is_weight(t.name) ? half(wide, Dtype::BF16) : in_type(wide, Dtype::BF16);
    if (is_weight(t.name)) initial[t.name + model::kRest] = half(wide, Dtype::I16);
  }
  base::SimVfs memory;
  int num_saved = 0;
  const auto future = [&](const State& state) {
    const std::string folder = fmt::format("run{}", num_saved++);
    trainer.restore(
        checkpoint::open(memory, checkpoint::save(memory, folder, view_of(like, state), {}).path));
    for (int i = 0; i < 2; ++i) trainer.step();
    return trainer.state_sha256();
  };
  const std::string expected = future(narrow_);
  ASSERT_EQ(future(narrow_), expected) << "the control: nothing dropped, nothing changed";
  for (const auto& [name, t] : narrow_) {
    ASSERT_FALSE(t.bytes == initial.at(name).bytes) << name << " did not move";
    State mutant = narrow_;
    mutant.at(name).bytes = initial.at(name).bytes;
    EXPECT_NE(future(mutant), expected) << name << " could be left out of the checkpoint";
  }
  EXPECT_EQ(narrow_.size(), initial.size());
}

// What a GPU in bf16 would ask for, from a checkpoint in float32.
TEST_F(NarrowRun, AWideCheckpointFillsNarrowState) {
  const checkpoint::Found found = checkpoint::find_newest(vfs_, at("wide") + "/checkpoints");
  ASSERT_TRUE(found.newest);
  State state;
  for (const auto& [name, t] : wide_) {
    state[name] = is_weight(name) ? half(t, Dtype::BF16) : in_type(t, Dtype::BF16);
    if (is_weight(name)) state[name + model::kRest] = half(t, Dtype::I16);
  }
  State filled = state;
  std::vector<checkpoint::Target> targets;
  for (auto& [name, t] : filled) {
    std::fill(t.bytes.begin(), t.bytes.end(), std::byte{0xFF});
    targets.push_back({name, t.dtype, t.shape, t.bytes});
  }
  train::restore_state(*found.newest, targets);
  for (const auto& [name, t] : state) EXPECT_TRUE(filled.at(name).bytes == t.bytes) << name;
}

// As ranks read it that hold parts: a weight with its rest, and back.
TEST_F(NarrowRun, PartsHaveTheNumbersOfTheWhole) {
  const auto check = [&](const char* run, const State& expected) {
    const checkpoint::Found found = checkpoint::find_newest(vfs_, at(run) + "/checkpoints");
    ASSERT_TRUE(found.newest);
    std::vector<checkpoint::Expected> all;
    for (const auto& [name, t] : expected) all.push_back({name, t.dtype, t.shape});
    train::PartRestorer restorer(*found.newest, all);
    for (const auto& [name, t] : expected) {
      // Two parts, which change places.
      const int64_t size = tensor::size_of(t.dtype), bytes = static_cast<int64_t>(t.bytes.size()),
                    cut = bytes / size / 3 * size;
      const checkpoint::Part parts[] = {{0, bytes - cut, cut}, {cut, 0, bytes - cut}};
      std::vector<std::byte> got(t.bytes.size(), std::byte{0xFF});
      restorer.read(name, t.dtype, parts, got);
      std::rotate(got.begin(), got.end() - static_cast<std::ptrdiff_t>(cut), got.end());
      EXPECT_TRUE(got == t.bytes) << name;
    }
  };
  State narrowed;
  for (const auto& [name, t] : wide_) {
    narrowed[name] = is_weight(name) ? half(t, Dtype::BF16) : in_type(t, Dtype::BF16);
    if (is_weight(name)) narrowed[name + model::kRest] = half(t, Dtype::I16);
  }
  check("wide", narrowed);

  const checkpoint::Found found = checkpoint::find_newest(vfs_, at("narrow") + "/checkpoints");
  ASSERT_TRUE(found.newest);
  State widened = wide_;
  std::vector<checkpoint::Target> targets;
  for (auto& [name, t] : widened) targets.push_back({name, t.dtype, t.shape, t.bytes});
  train::restore_state(*found.newest, targets);
  check("narrow", widened);
}

TEST_F(NarrowRun, WhatIsMissingOrMisshapenIsNamedBeforeAByteChanges) {
  const checkpoint::Found found = checkpoint::find_newest(vfs_, at("narrow") + "/checkpoints");
  ASSERT_TRUE(found.newest);
  State state = wide_;
  state["no.such.weight"] = state.begin()->second;
  state.at("final_norm.weight").shape = {4, 4};
  state.erase("head.weight");
  std::vector<checkpoint::Target> targets;
  for (auto& [name, t] : state) targets.push_back({name, t.dtype, t.shape, t.bytes});
  const State before = state;
  const std::string message = message_of([&] { train::restore_state(*found.newest, targets); });
  for (const char* part :
       {"missing in the checkpoint: 'no.such.weight'", "only in the checkpoint: 'head.weight'",
        "only in the checkpoint: 'head.weight.rest'",
        "'final_norm.weight': bf16[16] in the checkpoint, bf16[4, 4] asked for"})
    EXPECT_NE(message.find(part), std::string::npos) << part << "\n" << message;
  for (const auto& [name, t] : before) EXPECT_TRUE(state.at(name).bytes == t.bytes) << name;
}

}  // namespace
}  // namespace pleat::exchange::testing
