// A run that was stopped and went on is the run that never stopped, bit for bit, at every later step; and it
// is so only because every piece of the checkpoint is there: put one piece back to its first value and the
// future changes.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/posix_vfs.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "report/jsonl_log.h"
#include "resume/resume_support.h"
#include "tensor/bf16.h"
#include "train/loop.h"

namespace pleat::train {
namespace {

using testing::faults_at;
using testing::resolved_config;
using testing::tensors_of;

// 18 samples an epoch, 4 samples a step: epochs end inside steps 5 and 9 and at the end of step 9 the third
// begins.
constexpr int64_t kTokens = 18 * 32 + 9;
constexpr int64_t kSaved = 6, kEnd = 12;

class Resume : public testing::SavedRuns {
 protected:
  void SetUp() override { testing::write_dataset(folder_.at("data"), kTokens, 7); }
};

TEST_F(Resume, EveryLaterStepHasTheSameBits) {
  const TrainerHooks hooks = faults_at({3, 9});
  Trainer undisturbed(resolved_config(folder_, kEnd), {}, hooks);
  const std::vector<std::string> expected = digests(undisturbed, kEnd);
  ASSERT_EQ(undisturbed.run_state().refused_total, 2);
  ASSERT_EQ(undisturbed.run_state().data.sources[0].epoch, 2);

  for (const int64_t stop : {int64_t{1}, int64_t{3}, kSaved, int64_t{9}, kEnd - 1}) {
    SCOPED_TRACE(fmt::format("stopped after step {}", stop));
    std::optional<checkpoint::Loaded> loaded;
    {
      Trainer first(resolved_config(folder_, kEnd), {}, hooks);
      digests(first, stop);
      ASSERT_EQ(first.state_sha256(), expected[size_t(stop) - 1]);
      loaded = saved(first.state());
    }
    // Another number of threads is another machine's way to the same bits.
    Trainer second(resolved_config(folder_, kEnd, {"device.threads=2"}), {}, hooks);
    EXPECT_EQ(second.restore(*loaded), std::vector<std::string>{"device.threads: 1 -> 2"});
    EXPECT_EQ(second.state_sha256(), expected[size_t(stop) - 1]);
    EXPECT_EQ(digests(second, kEnd - stop),
              std::vector<std::string>(expected.begin() + stop, expected.end()));
  }
}

TEST_F(Resume, MomentsInFormatsOfTheirOwn) {
  std::vector<std::string> ends;
  for (const std::vector<std::string>& formats :
       {std::vector<std::string>{},
        {"optimizer.moment1_dtype=bfloat16"},
        {"optimizer.moment2_dtype=bfloat16"},
        {"optimizer.moment1_dtype=block8", "optimizer.moment2_dtype=block8"}}) {
    SCOPED_TRACE(formats.empty() ? "float32" : formats[0]);
    Trainer undisturbed(resolved_config(folder_, kEnd, formats));
    const std::vector<std::string> expected = digests(undisturbed, kEnd);
    Trainer first(resolved_config(folder_, kEnd, formats));
    digests(first, kSaved);
    Trainer second(resolved_config(folder_, kEnd, formats));
    EXPECT_EQ(second.restore(saved(first.state())), std::vector<std::string>{});
    EXPECT_EQ(digests(second, kEnd - kSaved),
              std::vector<std::string>(expected.begin() + kSaved, expected.end()));
    ends.push_back(expected.back());
  }
  EXPECT_NE(ends[0], ends[1]);
  EXPECT_NE(ends[0], ends[2]);
  EXPECT_NE(ends[1], ends[2]);
}

// The step behind the stop is scaled by the norm of the last committed one, which is not the last step: that is refused.
TEST_F(Resume, TheNormThatClipsTheNextStepGoesOn) {
  const TrainerHooks hooks = faults_at({kSaved});
  const std::vector<std::string> sets = {"optimizer.clip=0.1", "optimizer.clip_by=previous"};
  Trainer undisturbed(resolved_config(folder_, kEnd, sets), {}, hooks);
  const std::vector<std::string> expected = digests(undisturbed, kEnd);
  Trainer first(resolved_config(folder_, kEnd, sets), {}, hooks);
  digests(first, kSaved);
  EXPECT_GT(first.run_state().update_norm, 0.1);
  const auto rest_of = [&](const checkpoint::StateView& state) {
    Trainer second(resolved_config(folder_, kEnd, sets), {}, hooks);
    second.restore(saved(state));
    return digests(second, kEnd - kSaved);
  };
  const std::vector<std::string> rest(expected.begin() + kSaved, expected.end());
  EXPECT_EQ(rest_of(first.state()), rest);
  checkpoint::StateView other = first.state();
  other.reals.at("update_norm") *= 2;
  EXPECT_NE(rest_of(other), rest);
  for (const double value : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    other.reals.at("update_norm") = value;
    EXPECT_THROW(rest_of(other), base::Error) << value;
  }
  // A run that clipped otherwise has none: its next step is not scaled.
  Trainer global(resolved_config(folder_, kEnd, {"optimizer.clip=0.1"}));
  digests(global, kSaved);
  Trainer changed(resolved_config(folder_, kEnd, sets));
  EXPECT_EQ(changed.restore(saved(global.state())),
            std::vector<std::string>{"optimizer.clip_by: \"global\" -> \"previous\""});
  EXPECT_EQ(changed.step().record.clip_scale, 1);
  EXPECT_LT(changed.step().record.clip_scale, 1);
}

// A run that goes on with a moment in another format: the numbers are the saved ones, rounded where they must be.
TEST_F(Resume, AMomentMayChangeItsFormat) {
  Trainer first(resolved_config(folder_, kEnd));
  digests(first, 2);
  Trainer second(resolved_config(folder_, kEnd, {"optimizer.moment2_dtype=bfloat16"}));
  EXPECT_EQ(second.restore(saved(first.state())),
            std::vector<std::string>{"optimizer.moment2_dtype: unset -> \"bfloat16\""});
  const testing::Tensors before = tensors_of(first), after = tensors_of(second);
  int num_rounded = 0;
  for (const auto& [name, bytes] : before) {
    if (!name.ends_with(".moment2")) {
      EXPECT_EQ(after.at(name), bytes) << name;
      continue;
    }
    const auto* wide = reinterpret_cast<const float*>(bytes.data());
    const auto* narrow = reinterpret_cast<const uint16_t*>(after.at(name).data());
    ASSERT_EQ(after.at(name).size() * 2, bytes.size()) << name;
    for (size_t i = 0; i < bytes.size() / sizeof(float); ++i)
      ASSERT_EQ(narrow[i], tensor::narrowed(wide[i])) << name << " " << i;
    ++num_rounded;
  }
  EXPECT_EQ(num_rounded, int(first.programs().table().size()));
  EXPECT_TRUE(second.step().committed);
}

// To codes and back: decoded, encoded and decoded again, the numbers are the same.
TEST_F(Resume, MomentsGoToCodesAndBack) {
  const std::vector<std::string> codes = {"optimizer.moment1_dtype=block8", "optimizer.moment2_dtype=block8"};
  Trainer first(resolved_config(folder_, kEnd, codes));
  digests(first, 3);
  Trainer wide(resolved_config(folder_, kEnd));
  wide.restore(saved(first.state()));
  Trainer again(resolved_config(folder_, kEnd, codes));
  again.restore(saved(wide.state()));
  const testing::Tensors before = tensors_of(first), after = tensors_of(again);
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, bytes] : before) {
    if (name.ends_with(".moment2.scale")) {  // of a root's square a root again: a last place
      for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
        float was = 0, is = 0;
        std::memcpy(&was, bytes.data() + i, sizeof was),
            std::memcpy(&is, after.at(name).data() + i, sizeof is);
        EXPECT_NEAR(is, was, 0x1p-22 * was) << name;
      }
      continue;
    }
    EXPECT_EQ(after.at(name), bytes) << name;
  }
  EXPECT_TRUE(wide.step().committed);
  EXPECT_TRUE(again.step().committed);
}

TEST_F(Resume, EverySingleTensorAndCounterMatters) {
  const config::Config config = resolved_config(folder_, kEnd);
  Trainer trainer(config, {}, faults_at({3}));
  const testing::Tensors initial = tensors_of(trainer);
  digests(trainer, kSaved);
  const checkpoint::StateView live = trainer.state();
  testing::Tensors at_save = tensors_of(trainer);
  checkpoint::StateView whole = live;
  for (checkpoint::TensorRef& t : whole.tensors) t.bytes = at_save.at(t.name);
  const auto future = [&](const checkpoint::StateView& state) {
    trainer.restore(saved(state));
    for (int64_t i = 0; i < kEnd - kSaved; ++i) trainer.step();
    return tensors_of(trainer);
  };
  const testing::Tensors expected = future(whole);
  ASSERT_EQ(future(whole), expected) << "the control: nothing dropped, nothing changed";

  int num_weights = 0, num_first = 0, num_second = 0, num_bias = 0;
  for (size_t i = 0; i < whole.tensors.size(); ++i) {
    const std::string& name = whole.tensors[i].name;
    ASSERT_NE(at_save.at(name), initial.at(name))
        << name << " did not move, so dropping it could not be seen";
    checkpoint::StateView mutant = whole;
    mutant.tensors[i].bytes = initial.at(name);
    EXPECT_NE(future(mutant), expected) << name << " could be left out of the checkpoint";
    if (name.ends_with(".moment1"))
      ++num_first;
    else if (name.ends_with(".moment2"))
      ++num_second;
    else if (name.ends_with(".expert_bias"))
      ++num_bias;
    else
      ++num_weights;
  }
  EXPECT_EQ(num_weights, int(trainer.programs().table().size()));
  EXPECT_EQ(num_first, num_weights);
  EXPECT_EQ(num_second, num_weights);
  EXPECT_EQ(num_bias, 2);

  const std::map<std::string, int64_t> pieces = {
      {"data.epoch", 1}, {"data.next_sample", 6}, {"refused_in_row", 0}, {"refused_total", 1}};
  EXPECT_EQ(whole.integers, pieces) << "a new piece of state needs its own proof here";
  for (const auto& [name, value] : pieces) {
    if (name == "refused_in_row") continue;  // it changes no weight but when the run ends: the next test
    checkpoint::StateView mutant = whole;
    mutant.integers[name] = 0;
    EXPECT_NE(future(mutant), expected) << name << " could be left out of the checkpoint";
  }
  checkpoint::StateView mutant = whole;
  mutant.step = 1;  // one step was refused: a number below that cannot be
  EXPECT_NE(future(mutant), expected) << "the step could be left out of the checkpoint";
  EXPECT_TRUE(whole.reals.empty());
}

// Two refused steps, the stop, a third: the run must end there, and would go on with the count forgotten.
TEST_F(Resume, RefusedStepsInARowAreCountedAcrossAStop) {
  const config::Config config = resolved_config(folder_, kEnd);
  Trainer trainer(config, {}, faults_at({kSaved - 1, kSaved}));
  digests(trainer, kSaved);
  checkpoint::StateView state = trainer.state();
  ASSERT_EQ(state.integers.at("refused_in_row"), 2);
  LoopOptions options;
  options.quiet = true;
  options.fault_step = kSaved + 1;

  saved(state, "run/checkpoints");
  const LoopResult stopped = run_training(config, options);
  EXPECT_EQ(stopped.code, base::ExitCode::Numerical);
  EXPECT_EQ(stopped.step, kSaved + 1);

  state.integers["refused_in_row"] = 0;
  saved(state, "run/checkpoints");
  const LoopResult went_on = run_training(config, options);
  EXPECT_EQ(went_on.code, base::ExitCode::Done);
  EXPECT_EQ(went_on.step, kEnd);
}

// log.breakdown_every: which steps say where their time went; nothing else changes.
TEST_F(Resume, TimedStepsHaveTheSameBits) {
  LoopOptions options;
  options.quiet = true;
  const LoopResult plain =
      run_training(resolved_config(folder_, 5, {"log.run_dir=\"" + folder_.at("a") + "\""}), options);
  const LoopResult timed = run_training(resolved_config(folder_, 5,
                                                        {"log.run_dir=\"" + folder_.at("b") + "\"",
                                                         "log.breakdown_every=2", "device.in_order=true"}),
                                        options);
  EXPECT_EQ(timed.state_sha256, plain.state_sha256);
  for (const report::StepRecord& record : report::read_log(folder_.at("b") + "/metrics.jsonl")) {
    EXPECT_EQ(record.breakdown.empty(), record.step % 2 != 0) << "step " << record.step;
    if (record.breakdown.empty()) continue;
    EXPECT_EQ(record.breakdown.size(), 9u);
    double sum = 0;
    for (const auto& [name, ms] : record.breakdown) sum += ms;
    // Stages one after the other: the classes and the gaps are the step.
    EXPECT_NEAR(sum, 1e3 * record.step_seconds, 1e-6 + 1e-9 * sum);
    EXPECT_GT(record.breakdown.at("attention"), 0);
    EXPECT_GT(record.breakdown.at("host gaps"), 0);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_.at("b") + "/matmul_choices.json")) << "no GPU, no choices";
}

TEST_F(Resume, ACheckpointWithoutAPieceIsRefusedByName) {
  Trainer trainer(resolved_config(folder_, kEnd));
  digests(trainer, 2);
  const checkpoint::StateView whole = trainer.state();
  const auto refusal = [&](const checkpoint::StateView& state) {
    try {
      trainer.restore(saved(state));
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ExitCode::BadInput);
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  const std::string before = trainer.state_sha256();
  for (const auto& [name, value] : whole.integers) {
    checkpoint::StateView mutant = whole;
    mutant.integers.erase(name);
    EXPECT_NE(refusal(mutant).find(name), std::string::npos) << refusal(mutant);
  }
  for (const auto& [name, text] : whole.texts) {
    checkpoint::StateView mutant = whole;
    mutant.texts.erase(name);
    EXPECT_NE(refusal(mutant).find(name), std::string::npos) << refusal(mutant);
  }
  for (const size_t i : {size_t{0}, whole.tensors.size() / 2, whole.tensors.size() - 1}) {
    checkpoint::StateView mutant = whole;
    const std::string name = mutant.tensors[i].name;
    mutant.tensors.erase(mutant.tensors.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_NE(refusal(mutant).find(name), std::string::npos) << refusal(mutant);
  }
  EXPECT_EQ(trainer.state_sha256(), before) << "a refused restore changed something";
}

TEST_F(Resume, EveryChangedTokenIsNoticed) {
  Trainer trainer(resolved_config(folder_, kEnd));
  digests(trainer, 1);
  const checkpoint::Loaded loaded = saved(trainer.state());
  const std::string bytes = pleat::testing::read_file(folder_.at("data.bin"));
  for (size_t token = 0; token < bytes.size() / 2; token += 47) {
    std::string changed = bytes;
    changed[2 * token] = changed[2 * token] == '#' ? '+' : '#';
    pleat::testing::write_file(folder_.at("data.bin"), changed);
    Trainer other(resolved_config(folder_, kEnd));
    EXPECT_THROW(other.restore(loaded), base::Error) << "token " << token;
  }
  pleat::testing::write_file(folder_.at("data.bin"), bytes);
  Trainer same(resolved_config(folder_, kEnd));
  same.restore(loaded);
  EXPECT_EQ(same.state_sha256(), trainer.state_sha256());
}

TEST_F(Resume, AForgedCounterIsRefused) {
  Trainer trainer(resolved_config(folder_, kEnd));
  digests(trainer, 2);
  for (const char* name : {"refused_total", "refused_in_row", "data.epoch", "data.next_sample"})
    for (const int64_t value : {INT64_MIN, int64_t{-1}, INT64_MAX}) {
      // A later epoch is a place like any other.
      if (std::string_view(name) == "data.epoch" && value > 0) continue;
      checkpoint::StateView forged = trainer.state();
      forged.integers[name] = value;
      Trainer other(resolved_config(folder_, kEnd));
      EXPECT_THROW(other.restore(saved(forged)), base::Error) << name << " " << value;
    }
}

TEST_F(Resume, AnotherModelOrOtherDataIsRefused) {
  Trainer trainer(resolved_config(folder_, kEnd));
  digests(trainer, 1);
  const checkpoint::Loaded loaded = saved(trainer.state());
  const auto refusal = [&](const config::Config& config) {
    Trainer other(config);
    const std::string before = other.state_sha256();
    try {
      other.restore(loaded);
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ExitCode::BadInput);
      EXPECT_EQ(other.state_sha256(), before);
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  std::string message = refusal(resolved_config(folder_, kEnd, {"moe.top_k=3"}));
  EXPECT_NE(message.find("moe.top_k: 2 -> 3"), std::string::npos) << message;
  message = refusal(resolved_config(folder_, kEnd, {"train.seq_len=16"}));
  EXPECT_NE(message.find("train.seq_len: 32 -> 16"), std::string::npos) << message;

  testing::write_dataset(folder_.at("longer"), kTokens + 40, 7);
  message = refusal(resolved_config(folder_, kEnd, {"data.train=" + folder_.at("longer")}));
  EXPECT_NE(message.find("longer"), std::string::npos) << message;
  // As many tokens, in as many documents, but another text.
  std::filesystem::copy(folder_.at("data.idx"), folder_.at("other.idx"));
  std::string bytes = pleat::testing::read_file(folder_.at("data.bin"));
  bytes[bytes.size() / 2 & ~size_t{1}] = '#';
  pleat::testing::write_file(folder_.at("other.bin"), bytes);
  message = refusal(resolved_config(folder_, kEnd, {"data.train=" + folder_.at("other")}));
  EXPECT_NE(message.find("other"), std::string::npos) << message;

  Trainer same(resolved_config(folder_, kEnd + 4, {"optimizer.lr=2e-2", "checkpoint.every=3"}));
  EXPECT_EQ(same.restore(loaded),
            (std::vector<std::string>{"optimizer.lr: 0.01 -> 0.02", "optimizer.decay_steps: 12 -> 16",
                                      "train.steps: 12 -> 16", "checkpoint.every: 0 -> 3",
                                      "log.timeline_step: 12 -> 16"}));
  EXPECT_EQ(same.state_sha256(), trainer.state_sha256());
}

}  // namespace
}  // namespace pleat::train
