// Runs on the GPU in bf16 that were stopped and went on are the runs that never stopped, bit for bit; and they are so
// only because every tensor of the checkpoint is there. The analogue on the CPU is tests/resume/resume_test.cpp.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/posix_vfs.h"
#include "base/sim_vfs.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "cuda/cuda_support.h"
#include "kernels/cuda/choices.h"
#include "model/state.h"
#include "resume/resume_support.h"
#include "train/loop.h"
#include "train/matmul_choices.h"

namespace pleat::train {
namespace {

constexpr int64_t kTokens = 18 * 32 + 9;  // 18 samples an epoch, 4 samples a step
constexpr int64_t kSaved = 6, kEnd = 12;

using Words = std::vector<std::string>;

class CudaResume : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kernels::testing::no_gpu().empty()) testing::write_dataset(folder_.at("data"), kTokens, 7);
  }

  static Words in_bfloat16(const Words& more) {
    Words out = {"device.kind=\"cuda\"", "model.dtype=\"bfloat16\""};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  config::Config config(const Words& more = {}) const {
    return testing::resolved_config(folder_, kEnd, in_bfloat16(more));
  }

  // SHA-256 of the state after each of `num_steps` more steps.
  static std::vector<std::string> digests(Trainer& trainer, int64_t num_steps) {
    std::vector<std::string> out;
    for (int64_t i = 0; i < num_steps; ++i) trainer.step(), out.push_back(trainer.state_sha256());
    return out;
  }

  // Saved in memory.
  checkpoint::Loaded saved(Trainer& trainer) {
    return checkpoint::open(memory_, trainer.save(memory_, fmt::format("run{}", num_saved_++), {}).path);
  }

  testing::TemporaryFolder folder_;
  base::SimVfs memory_;
  int num_saved_ = 0;
};

TEST_F(CudaResume, EveryLaterStepHasTheSameBits) {
  PLEAT_NEEDS_GPU();
  const std::vector<Words> formats = {
      {},
      {"optimizer.grad_dtype=\"bfloat16\""},
      {"optimizer.moment1_dtype=\"bfloat16\"", "optimizer.moment2_dtype=\"bfloat16\""},
      {"optimizer.moment_dtype=\"block8\"", "optimizer.master=\"float24\""},
      {"optimizer.master=\"bfloat16\"", "optimizer.moment_dtype=\"block8\"",
       "optimizer.state_space=\"host\""}};
  std::vector<std::string> ends;
  for (const Words& format : formats) {
    SCOPED_TRACE(format.empty() ? "gradients and moments in float32" : format[0]);
    const TrainerHooks hooks = testing::faults_at({3, 9});
    Trainer undisturbed(config(format), {}, hooks);
    const std::vector<std::string> expected = digests(undisturbed, kEnd);
    ASSERT_EQ(undisturbed.run_state().refused_total, 2);
    ASSERT_EQ(undisturbed.run_state().data.sources[0].epoch, 2);
    ends.push_back(expected.back());
    for (const int64_t stop : {int64_t{1}, int64_t{3}, kSaved, int64_t{9}, kEnd - 1}) {
      SCOPED_TRACE(fmt::format("stopped after step {}", stop));
      std::optional<checkpoint::Loaded> loaded;
      {
        Trainer first(config(format), {}, hooks);
        digests(first, stop);
        ASSERT_EQ(first.state_sha256(), expected[size_t(stop) - 1]);
        loaded = saved(first);
      }
      // Stages one by one launch what a graph does.
      Words stages = format;
      stages.push_back("device.graph=false");
      Trainer second(config(stages), {}, hooks);
      EXPECT_EQ(second.restore(*loaded), std::vector<std::string>{"device.graph: true -> false"});
      EXPECT_EQ(second.state_sha256(), expected[size_t(stop) - 1]);
      EXPECT_EQ(digests(second, kEnd - stop),
                std::vector<std::string>(expected.begin() + stop, expected.end()));
    }
  }
  EXPECT_NE(ends[0], ends[1]);
  EXPECT_NE(ends[0], ends[2]);
}

// As processes do it: the run folder is all the second has, the algorithms of products among it.
TEST_F(CudaResume, ARunThatWasStoppedEndsAsOneThatWasNot) {
  PLEAT_NEEDS_GPU();
  const auto run = [&](const std::string& name, int64_t stop_after, const std::string& choices) {
    kernels::use_matmul_choices({});  // what a new process knows
    LoopOptions options;
    options.quiet = true;
    options.stop_after = stop_after;
    return run_training(config::parse(testing::run_toml(folder_.at("data"), folder_.at(name), kEnd),
                                      in_bfloat16({"device.matmul_choices=\"" + choices + "\""})),
                        options);
  };
  const LoopResult whole = run("whole", 0, "");
  ASSERT_EQ(whole.code, base::ExitCode::Done);
  // Two runs that measure may choose differently: the second has the first one's choices.
  const std::string choices = folder_.at("whole") + "/" + kMatmulChoicesFile;
  for (const int64_t stop : {int64_t{1}, kSaved, kEnd - 1}) {
    SCOPED_TRACE(fmt::format("stopped after step {}", stop));
    const std::string name = fmt::format("stopped{}", stop);
    const int64_t measured = kernels::num_matmuls_measured();
    const LoopResult first = run(name, stop, choices);
    EXPECT_EQ(first.code, base::ExitCode::Retry);
    EXPECT_EQ(first.step, stop);
    const LoopResult second = run(name, 0, choices);
    EXPECT_EQ(second.code, base::ExitCode::Done);
    EXPECT_EQ(second.step, kEnd);
    EXPECT_EQ(second.state_sha256, whole.state_sha256);
    EXPECT_EQ(kernels::num_matmuls_measured(), measured) << "measured again what was kept";
  }
  kernels::use_matmul_choices({});
}

// Every tensor put back to its first value, one at a time: the future changes. And one bit of each changes the digest.
TEST_F(CudaResume, EverySingleTensorOfBfloat16StateMatters) {
  PLEAT_NEEDS_GPU();
  Trainer trainer(config({"optimizer.moment2_dtype=\"bfloat16\""}));
  const auto tensors_now = [&] {
    testing::Tensors out;
    trainer.with_state([&](const checkpoint::StateView& view) {
      for (const checkpoint::TensorRef& t : view.tensors) out[t.name] = t.bytes.copy();
    });
    return out;
  };
  const testing::Tensors initial = tensors_now();
  digests(trainer, kSaved);
  testing::Tensors at_save = tensors_now();
  checkpoint::StateView whole;
  trainer.with_state([&](const checkpoint::StateView& view) { whole = view; });
  for (checkpoint::TensorRef& t : whole.tensors) t.bytes = at_save.at(t.name);
  const auto restored = [&](const checkpoint::StateView& state) {
    const checkpoint::SaveResult result =
        checkpoint::save(memory_, fmt::format("run{}", num_saved_++), state, {});
    trainer.restore(checkpoint::open(memory_, result.path));
    return trainer.state_sha256();
  };
  const auto future = [&](const checkpoint::StateView& state) {
    restored(state);
    return digests(trainer, kEnd - kSaved).back();
  };
  const std::string now = restored(whole), expected = future(whole);
  ASSERT_EQ(future(whole), expected) << "the control: nothing dropped, nothing changed";

  std::map<tensor::Dtype, int> num_tensors;
  int num_rests = 0;
  for (size_t i = 0; i < whole.tensors.size(); ++i) {
    const std::string name = whole.tensors[i].name;
    ++num_tensors[whole.tensors[i].dtype];
    num_rests += name.ends_with(model::kRest);
    ASSERT_NE(at_save.at(name), initial.at(name)) << name << " did not move";
    checkpoint::StateView mutant = whole;
    mutant.tensors[i].bytes = initial.at(name);
    EXPECT_NE(future(mutant), expected) << name << " could be left out of the checkpoint";
    std::vector<std::byte> flipped = at_save.at(name);
    flipped[flipped.size() / 2] ^= std::byte{1};
    mutant.tensors[i].bytes = flipped;
    EXPECT_NE(restored(mutant), now) << name << " with another bit is the same state";
  }
  const int num_weights = static_cast<int>(trainer.programs().table().size());
  EXPECT_EQ(num_rests, num_weights);
  EXPECT_EQ(num_tensors[tensor::Dtype::BF16], 2 * num_weights) << "weights and second moments";
  EXPECT_EQ(num_tensors[tensor::Dtype::F32], num_weights + 2) << "first moments, two balancing biases";
}

}  // namespace
}  // namespace pleat::train
