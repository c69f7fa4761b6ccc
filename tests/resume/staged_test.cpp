// A run whose state the host does not reach directly is the same run: its first weights, every step, what it saves and
// what it goes on from. The GPU's own buffers are in tests/cuda/staging_test.cpp.
#include <gtest/gtest.h>

#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "resume/resume_support.h"
#include "resume/staged_support.h"

namespace pleat::train {
namespace {

using testing::resolved_config;
using testing::tensors_of;

class Staged : public testing::SavedRuns {
 protected:
  void SetUp() override { testing::write_dataset(folder_.at("data"), kTokens, 7); }

  static constexpr int64_t kTokens = 18 * 32 + 9, kSaved = 4, kEnd = 8;

  static runtime::ProgramChoice behind(int64_t buffer_bytes) {
    runtime::ProgramChoice choice;
    choice.carrier = testing::late_carrier(buffer_bytes);
    return choice;
  }
};

TEST_F(Staged, EveryStepAndEveryResumeHasTheSameBits) {
  const TrainerHooks hooks = testing::faults_at({3});
  for (const std::vector<std::string>& format :
       {std::vector<std::string>{},
        {"model.dtype=\"float64\""},
        {"optimizer.moment1_dtype=\"block8\"", "optimizer.moment2_dtype=\"block8\""}}) {
    SCOPED_TRACE(format.empty() ? "float32" : format[0]);
    std::vector<std::string> sets = {fmt::format("data.valid=\"{}\"", folder_.at("data"))};
    sets.insert(sets.end(), format.begin(), format.end());
    const config::Config config = resolved_config(folder_, kEnd, sets);
    Trainer direct(config, {}, hooks);
    const testing::Tensors first = tensors_of(direct);
    const std::vector<std::string> expected = digests(direct, kEnd);
    for (const int64_t buffer : {256, 4096}) {
      SCOPED_TRACE(buffer);
      Trainer staged(config, behind(buffer), hooks);
      EXPECT_EQ(tensors_of(staged), first);
      EXPECT_EQ(digests(staged, kSaved),
                std::vector<std::string>(expected.begin(), expected.begin() + kSaved));
      // Saved through small buffers, gone on with directly, and the other way round.
      const checkpoint::Loaded loaded = saved(staged.state());
      EXPECT_EQ(loaded.state_sha256(), checkpoint::state_sha256(staged.state()));
      const std::vector<std::string> later(expected.begin() + kSaved, expected.end());
      Trainer there(config, {}, hooks);
      there.restore(loaded);
      EXPECT_EQ(digests(there, kEnd - kSaved), later);
      Trainer back(config, behind(buffer), hooks);
      back.restore(loaded);
      EXPECT_EQ(back.evaluate(0).loss, [&] {
        Trainer again(config, {}, hooks);
        again.restore(loaded);
        return again.evaluate(0).loss;
      }());
      EXPECT_EQ(digests(back, kEnd - kSaved), later);
    }
  }
}

// What a checkpoint has in other types is converted piece by piece.
TEST_F(Staged, OtherTypesAndNarrowStatesComeThrough) {
  const auto config = [&](const std::vector<std::string>& sets) {
    return resolved_config(folder_, kEnd, sets);
  };
  const std::vector<std::vector<std::string>> formats = {
      {},
      {"model.dtype=\"float64\"", "moe.router_dtype=\"float64\""},
      {"optimizer.moment1_dtype=\"bfloat16\""},
      {"optimizer.moment1_dtype=\"block8\"", "optimizer.moment2_dtype=\"block8\""}};
  for (const auto& from : formats) {
    Trainer trainer(config(from));
    for (int i = 0; i < 2; ++i) trainer.step();
    const checkpoint::Loaded loaded = saved(trainer.state());
    for (const auto& to : formats) {
      Trainer direct(config(to)), staged(config(to), behind(256));
      direct.restore(loaded);
      staged.restore(loaded);
      EXPECT_EQ(tensors_of(staged), tensors_of(direct));
    }
  }
}

}  // namespace
}  // namespace pleat::train
