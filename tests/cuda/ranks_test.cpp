// Whole training runs on thread ranks that share the GPU: they follow one rank, and what they save belongs to
// no layout.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/posix_vfs.h"
#include "checkpoint/save.h"
#include "cuda/cuda_support.h"
#include "resume/ranks_support.h"
#include "resume/resume_support.h"
#include "train/trainer.h"

namespace pleat::train {
namespace {

using testing::Ranks;

struct Layout {
  int ranks;
  std::vector<std::string> sets;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {2, {}},
      {4, {"parallel.ep=2", "parallel.tp=2"}},
      {4, {"parallel.pp=2", "parallel.cp=2", "parallel.context=\"ring\""}},
      {4, {"parallel.ep=4", "parallel.optimizer_group=2", "parallel.bucket_mib=0"}},
  };
  return all;
}

struct Trained {
  std::vector<double> losses;
  double evaluated = 0;
  std::string digest;
};

void train(Trainer& trainer, int steps, Trained& out) {
  for (int i = 0; i < steps; ++i) out.losses.push_back(trainer.step().record.loss);
  out.evaluated = trainer.evaluate(2).loss;
  out.digest = trainer.state_sha256();
}

class CudaRanks : public ::testing::TestWithParam<const char*> {
 protected:
  config::Config config(const std::vector<std::string>& sets) const {
    std::vector<std::string> all = {
        "device.kind=\"cuda\"",     std::string("model.dtype=\"") + GetParam() + "\"",
        "model.num_kv_heads=4",     "model.vocab_size=272",
        "train.num_microbatches=4", "data.valid=\"" + folder_.at("data") + "\"",
        "optimizer.lr=1e-3"};
    all.insert(all.end(), sets.begin(), sets.end());
    return testing::resolved_config(folder_, 3, all);
  }
  testing::TemporaryFolder folder_;
};

TEST_P(CudaRanks, FollowOneRankAndSaveWhatItCanLoad) {
  PLEAT_NEEDS_GPU();
  testing::write_dataset(folder_.at("data"), 6000, 7);
  Trained one;
  {
    Trainer trainer(config({}));
    train(trainer, 3, one);
  }
  // Losses are means: roundings hardly move them in three small steps, but a token routed differently does.
  const double allowed = std::string(GetParam()) == "bfloat16" ? 8 * 0x1p-8 : 1e-3;
  base::PosixVfs vfs;
  for (size_t k = 0; k < layouts().size(); ++k) {
    const Layout& layout = layouts()[k];
    SCOPED_TRACE(layout.sets.empty() ? "data parallel" : layout.sets.front());
    const config::Config c = config(layout.sets);
    const std::string directory = folder_.at(fmt::format("saved{}", k));
    std::filesystem::create_directories(directory);
    std::vector<Trained> ranks(static_cast<size_t>(layout.ranks));
    checkpoint::SaveResult saved;
    Ranks(c, layout.ranks).each([&](runtime::Crew& crew) {
      Trainer trainer(c, {}, {}, &crew);
      train(trainer, 3, ranks[static_cast<size_t>(crew.setup().rank())]);
      const checkpoint::SaveResult mine = trainer.save(vfs, directory, {});
      if (crew.leads()) saved = mine;
    });
    for (const Trained& r : ranks) {
      EXPECT_EQ(r.losses, ranks[0].losses) << "ranks disagree";
      EXPECT_EQ(r.digest, ranks[0].digest);
    }
    for (size_t i = 0; i < one.losses.size(); ++i)
      EXPECT_NEAR(ranks[0].losses[i], one.losses[i], allowed * one.losses[i]) << "step " << i + 1;
    EXPECT_NEAR(ranks[0].evaluated, one.evaluated, allowed * one.evaluated);

    Trainer alone(config({}));
    alone.restore(checkpoint::open(vfs, saved.path));
    EXPECT_EQ(alone.state_sha256(), ranks[0].digest);
    EXPECT_NEAR(alone.evaluate(2).loss, ranks[0].evaluated, allowed * one.evaluated);
    // And the other way round.
    Ranks(c, layout.ranks).each([&](runtime::Crew& crew) {
      Trainer trainer(c, {}, {}, &crew);
      trainer.restore(checkpoint::open(vfs, saved.path));
      EXPECT_EQ(trainer.state_sha256(), ranks[0].digest);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaRanks, ::testing::Values("float32", "bfloat16"));

}  // namespace
}  // namespace pleat::train
