// A checkpoint belongs to no layout: saved under one and loaded under another, it is the same state.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <mutex>

#include "base/posix_vfs.h"
#include "checkpoint/save.h"
#include "model/shard.h"
#include "resume/ranks_support.h"
#include "resume/resume_support.h"
#include "resume/staged_support.h"
#include "train/crew_peers.h"
#include "train/restore_state.h"
#include "train/sharded_state.h"

namespace pleat::train {
namespace {

using testing::Ranks;
using testing::resolved_config;

struct Case {
  int ranks;
  std::vector<std::string> sets;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {1, {}},
      {2, {"parallel.tp=2"}},
      {2, {"parallel.ep=2"}},
      {2, {"parallel.pp=2", "parallel.vpp=2"}},
      {3, {"parallel.bucket_mib=0"}},
      {4, {"parallel.tp=2", "parallel.ep=2", "parallel.optimizer_group=1"}},
      {4, {"parallel.cp=2", "parallel.tp=2", "parallel.ep=4"}},
      {4, {"parallel.pp=2", "parallel.ep=2", "parallel.pipeline_layout=\"Et|tttL\""}},
      {6,
       {"parallel.tp=2", "parallel.ep=2", "parallel.order=\"cp-tp-ep-dp-pp\"", "parallel.optimizer_group=3"}},
      {8, {"parallel.tp=2", "parallel.cp=2", "parallel.pp=2", "parallel.ep=2", "parallel.etp=2"}},
      {8, {"parallel.ep=8", "parallel.optimizer_group=2"}},
      {8, {"parallel.pp=4", "parallel.etp=2", "parallel.order=\"tp-cp-pp-ep-dp\"", "parallel.tp=2"}},
  };
  return all;
}

constexpr const char* kModel[] = {"model.num_layers=4", "train.num_microbatches=24", "train.micro_batch=1",
                                  "model.vocab_size=264"};

config::Config config_for(const testing::TemporaryFolder& folder, const Case& layout,
                          std::vector<std::string> more = {}) {
  std::vector<std::string> sets(std::begin(kModel), std::end(kModel));
  sets.insert(sets.end(), more.begin(), more.end());
  sets.insert(sets.end(), layout.sets.begin(), layout.sets.end());
  return resolved_config(folder, 4, sets);
}

// The ranks of a layout with the state of a model; an evaluation is the smallest program that holds it.
class Holder {
 public:
  // Staged: the host reaches the state through buffers smaller than its tensors.
  enum class Reach : bool { Direct, Staged };
  Holder(const config::Config& config, int num_ranks, Reach reach = Reach::Direct)
      : ranks_(config, num_ranks) {
    programs_.resize(static_cast<size_t>(num_ranks));
    states_.resize(static_cast<size_t>(num_ranks));
    ranks_.each([&](runtime::Crew& crew) {
      const size_t r = static_cast<size_t>(crew.setup().rank());
      runtime::ProgramChoice choice;
      choice.train = false;
      if (reach == Reach::Staged) choice.carrier = testing::late_carrier(256);
      programs_[r] = std::make_unique<runtime::Programs>(config, choice, &crew);
      states_[r] = std::make_unique<ShardedState>(*programs_[r], crew);
    });
  }

  void load(base::Vfs& vfs, const std::string& path) {
    ranks_.each([&](runtime::Crew& crew) {
      const size_t r = static_cast<size_t>(crew.setup().rank());
      for (const checkpoint::Target& t : programs_[r]->targets())
        t.bytes.write(0, std::vector(static_cast<size_t>(t.bytes.size()),
                                     std::byte{0xA5}));  // what was there must not matter
      states_[r]->restore(checkpoint::open(vfs, path));
    });
  }

  checkpoint::SaveResult save(base::Vfs& vfs, const std::string& directory) {
    checkpoint::SaveResult result;
    ranks_.each([&](runtime::Crew& crew) {
      const checkpoint::Share share{
          0, states_[static_cast<size_t>(crew.setup().rank())]->share(), {}, {}, {}};
      CrewPeers peers(crew, "test.save");
      const checkpoint::SaveResult mine = checkpoint::save(vfs, directory, share, {}, peers);
      if (crew.leads()) result = mine;
    });
    return result;
  }

  std::string digest() {
    std::string out;
    with_view([&](const checkpoint::StateView& view) { out = checkpoint::state_sha256(view); });
    return out;
  }

 private:
  void with_view(const std::function<void(const checkpoint::StateView&)>& use) {
    ranks_.each([&](runtime::Crew& crew) {
      states_[static_cast<size_t>(crew.setup().rank())]->gather(
          [&](std::vector<checkpoint::TensorRef> tensors) {
            checkpoint::StateView view;
            view.tensors = std::move(tensors);
            use(view);
          });
    });
  }

  Ranks ranks_;
  std::vector<std::unique_ptr<runtime::Programs>> programs_;
  std::vector<std::unique_ptr<ShardedState>> states_;
};

TEST(Reshard, ThereAndBackThroughEveryPairOfLayouts) {
  testing::TemporaryFolder folder;
  testing::write_dataset(folder.at("data"), 4000, 7);
  base::PosixVfs vfs;
  for (const std::vector<std::string>& model :
       {std::vector<std::string>{"model.tie_embeddings=true"},
        std::vector<std::string>{"model.num_mtp_layers=1", "model.dtype=\"float64\""},
        std::vector<std::string>{"optimizer.moment1_dtype=\"bfloat16\""},
        std::vector<std::string>{"optimizer.moment2_dtype=\"bfloat16\""}}) {
    Trainer trainer(config_for(folder, {1, {}}, model));
    for (int i = 0; i < 2; ++i) trainer.step();
    checkpoint::StateView start;
    start.tensors = trainer.state().tensors;
    const std::string digest = checkpoint::state_sha256(start);
    std::filesystem::create_directories(folder.at("start"));
    const std::string first = checkpoint::save(vfs, folder.at("start"), start, {}).path;

    std::vector<std::unique_ptr<Holder>> layouts;
    for (const Case& c : cases()) {
      Case layout = c;
      // Layers of multi-token prediction stand in the layout string too.
      for (std::string& set : layout.sets)
        if (const size_t at = set.find("L\"");
            at != std::string::npos && model[0].find("mtp") != std::string::npos)
          set.replace(at, 1, "mL");
      const auto reach = layouts.size() % 2 == 0 ? Holder::Reach::Direct : Holder::Reach::Staged;
      layouts.push_back(std::make_unique<Holder>(config_for(folder, layout, model), c.ranks, reach));
    }
    // All pairs for one model; for the others each layout and its neighbour.
    const bool all = model[0].find("tie") != std::string::npos;
    int pairs = 0;
    for (size_t a = 0; a < layouts.size(); ++a) {
      const std::string name = folder.at(fmt::format("a{}", a));
      layouts[a]->load(vfs, first);
      const checkpoint::SaveResult from_a = layouts[a]->save(vfs, name);
      ASSERT_EQ(from_a.state_sha256, digest) << "layout " << a;
      for (size_t b = 0; b < layouts.size(); ++b) {
        if (a == b || (!all && b != (a + 1) % layouts.size())) continue;
        const std::string there = folder.at("b");
        layouts[b]->load(vfs, from_a.path);
        const checkpoint::SaveResult from_b = layouts[b]->save(vfs, there);
        layouts[a]->load(vfs, from_b.path);
        ASSERT_EQ(layouts[a]->digest(), digest) << "layouts " << a << " and " << b;
        std::filesystem::remove_all(there);
        ++pairs;
      }
    }
    EXPECT_EQ(pairs, all ? 132 : 12);
    std::filesystem::remove_all(folder.at("start"));
    for (size_t a = 0; a < layouts.size(); ++a) std::filesystem::remove_all(folder.at(fmt::format("a{}", a)));
  }
}

// Codes: ranks hold whole blocks, so widths are multiples of one where tensor ranks cut them.
constexpr const char* kCodes[] = {"model.num_layers=2",
                                  "model.hidden_size=64",
                                  "model.head_dim=128",
                                  "moe.ffn_hidden_size=512",
                                  "moe.shared_ffn_hidden_size=512",
                                  "optimizer.moment1_dtype=\"block8\"",
                                  "optimizer.moment2_dtype=\"block8\""};
const std::vector<Case>& cases_of_codes() {
  static const std::vector<Case> all = {
      {1, {}},
      {2, {"parallel.tp=2"}},
      {3, {"parallel.bucket_mib=0"}},
      {4, {"parallel.tp=2", "parallel.etp=2", "parallel.ep=2"}},
      {4, {"parallel.pp=2", "parallel.ep=2", "parallel.optimizer_group=1"}},
      {4, {"parallel.ep=4", "parallel.cp=2"}},
  };
  return all;
}

TEST(Reshard, CodesComeThroughLayoutsAndFormats) {
  testing::TemporaryFolder folder;
  testing::write_dataset(folder.at("data"), 4000, 7);
  base::PosixVfs vfs;
  const std::vector<std::string> codes(std::begin(kCodes), std::end(kCodes)),
      wide(std::begin(kCodes), std::end(kCodes) - 2);
  for (const auto& [from, to] : {std::pair(codes, codes), {wide, codes}, {codes, wide}}) {
    Trainer trainer(config_for(folder, {1, {}}, from));
    for (int i = 0; i < 2; ++i) trainer.step();
    checkpoint::StateView start;
    start.tensors = trainer.state().tensors;
    const std::string before = checkpoint::state_sha256(start);
    std::filesystem::create_directories(folder.at("start"));
    const std::string first = checkpoint::save(vfs, folder.at("start"), start, {}).path;
    Holder one(config_for(folder, {1, {}}, to), 1);
    one.load(vfs, first);
    const std::string expected = one.digest();
    EXPECT_EQ(expected == before, from == to);
    for (const Case& layout : cases_of_codes()) {
      Holder saved(config_for(folder, layout, from), layout.ranks, Holder::Reach::Staged),
          resumed(config_for(folder, layout, to), layout.ranks, Holder::Reach::Staged);
      saved.load(vfs, first);
      const checkpoint::SaveResult there = saved.save(vfs, folder.at("there"));
      ASSERT_EQ(there.state_sha256, before) << layout.ranks;
      resumed.load(vfs, there.path);
      EXPECT_EQ(resumed.digest(), expected) << layout.ranks;
      std::filesystem::remove_all(folder.at("there"));
    }
    std::filesystem::remove_all(folder.at("start"));
  }
}

// Every byte of the state has exactly one owner, whatever the layout.
TEST(Reshard, OneOwnerForEveryByte) {
  testing::TemporaryFolder folder;
  const auto check = [&](const Case& c, const std::vector<std::string>& sets) {
    const config::Config config = config_for(folder, c, sets);
    const std::vector<model::Parameter> table = model::make_parameters(config);
    for (const LogicalTensor& t : logical_tensors(config, table)) {
      std::vector<int> owners(static_cast<size_t>(checkpoint::num_bytes_of(t.dtype, t.shape, t.name)), 0);
      for (int r = 0; r < c.ranks; ++r)
        for (const checkpoint::Part& p :
             parts_on(config, table, t, runtime::rank_setup(config, c.ranks, r), Which::Owned))
          for (int64_t i = 0; i < p.count; ++i) ++owners[static_cast<size_t>(p.tensor_begin + i)];
      EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), static_cast<int64_t>(owners.size()))
          << t.name << " on " << c.ranks << " ranks";
    }
  };
  for (const Case& c : cases()) {
    check(c, {});
    check(c, {"device.kind=\"cuda\"", "model.dtype=\"bfloat16\"", "optimizer.moment_dtype=\"bfloat16\""});
    check(c, {"optimizer.moment1_dtype=\"bfloat16\""});
  }
  for (const Case& c : cases_of_codes()) check(c, {std::begin(kCodes), std::end(kCodes)});
}

// A rank's part of a tensor is a few slices, however many rows it has: the table of contents stays small.
TEST(Reshard, SharesAreFewSlices) {
  testing::TemporaryFolder folder;
  for (const Case& c : cases()) {
    const config::Config config = config_for(folder, c);
    const std::vector<model::Parameter> table = model::make_parameters(config);
    for (const LogicalTensor& t : logical_tensors(config, table)) {
      if (t.kind == StateKind::Bias) continue;
      const model::Parameter& p = table[static_cast<size_t>(t.parameter_idx)];
      for (int r = 0; r < c.ranks; ++r) {
        const runtime::RankSetup rank = runtime::rank_setup(config, c.ranks, r);
        const int64_t row = model::row_elements(p, rank.mesh) * tensor::size_of(t.dtype);
        const size_t most = 3 * std::max<size_t>(p.blocks.size(), 1) + 2;
        EXPECT_LE(checkpoint::cut_into_rectangles(parts_on(config, table, t, rank, Which::Owned), row).size(),
                  most)
            << t.name << " on rank " << r << " of " << c.ranks;
      }
    }
  }
}

// The tensors a checkpoint of several ranks has are those one rank would save.
TEST(Reshard, LogicalTensorsAreOneRanksState) {
  testing::TemporaryFolder folder;
  for (const std::vector<std::string>& sets :
       {std::vector<std::string>{},
        {"device.kind=\"cuda\"", "model.dtype=\"bfloat16\""},
        {"device.kind=\"cuda\"", "model.dtype=\"bfloat16\"", "optimizer.moment_dtype=\"bfloat16\""},
        {"device.kind=\"cuda\"", "model.dtype=\"bfloat16\"", "optimizer.moment2_dtype=\"bfloat16\""},
        {"optimizer.moment1_dtype=\"bfloat16\""},
        {"optimizer.moment2_dtype=\"bfloat16\""},
        {"optimizer.moment2_dtype=\"block8\""},
        {"device.kind=\"cuda\"", "model.dtype=\"bfloat16\"", "optimizer.moment_dtype=\"block8\"",
         "optimizer.master=\"float24\""}}) {
    const config::Config config = config_for(folder, {1, {}}, sets);
    const std::vector<model::Parameter> table = model::make_parameters(config);
    std::map<std::string, std::pair<tensor::Dtype, std::vector<int64_t>>> logical, held;
    for (const LogicalTensor& t : logical_tensors(config, table)) logical[t.name] = {t.dtype, t.shape};
    for (const program::Value& v : runtime::plan_training_step(config, table).program.values)
      if (v.life == program::Life::Persistent && v.owner != program::Owner::Inputs &&
          v.view_of == program::kNoValue)
        held[v.name] = {v.dtype, v.shape};
    EXPECT_EQ(logical, held);
  }
}

TEST(Reshard, AskingForAnotherModelSaysWhatDiffers) {
  testing::TemporaryFolder folder;
  base::PosixVfs vfs;
  std::filesystem::create_directories(folder.at("c"));
  Holder two(config_for(folder, {2, {"parallel.tp=2"}}), 2);
  const std::string path = two.save(vfs, folder.at("c")).path;
  Holder other(config_for(folder, {2, {"parallel.ep=2", "moe.num_experts=4"}}), 2);
  try {
    other.load(vfs, path);
    FAIL() << "loaded a checkpoint of another model";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("'layers.0.experts.up.weight': f32["), std::string::npos)
        << e.what();
  }
}

TEST(Reshard, SeveralRanksCouldNotResumeInOtherFormatsThoughOneRankCould) {
  testing::TemporaryFolder folder;
  testing::write_dataset(folder.at("data"), 4000, 7);
  base::PosixVfs vfs;
  using Sets = std::vector<std::string>;
  const Sets plain = {}, wide = {"model.dtype=\"float64\"", "moe.router_dtype=\"float64\""},
             moment1 = {"optimizer.moment1_dtype=\"bfloat16\""},
             moment2 = {"optimizer.moment2_dtype=\"bfloat16\""};
  for (const auto& [from, to] : {std::pair(plain, moment1),
                                 {plain, moment2},
                                 {moment1, plain},
                                 {moment1, moment2},
                                 {wide, plain},
                                 {plain, wide},
                                 {wide, moment2}}) {
    Trainer trainer(config_for(folder, {1, {}}, from));
    for (int i = 0; i < 2; ++i) trainer.step();
    std::filesystem::create_directories(folder.at("start"));
    checkpoint::StateView start;
    start.tensors = trainer.state().tensors;
    const std::string first = checkpoint::save(vfs, folder.at("start"), start, {}).path;
    const std::string before = checkpoint::state_sha256(start);

    Holder one(config_for(folder, {1, {}}, to), 1);
    one.load(vfs, first);
    const std::string expected = one.digest();
    EXPECT_NE(expected, before);
    for (const size_t i : {1u, 2u, 3u, 5u, 9u}) {
      const Case& layout = cases()[i];
      Holder saved(config_for(folder, layout, from), layout.ranks, Holder::Reach::Staged),
          resumed(config_for(folder, layout, to), layout.ranks, Holder::Reach::Staged);
      saved.load(vfs, first);
      const checkpoint::SaveResult there = saved.save(vfs, folder.at("there"));
      ASSERT_EQ(there.state_sha256, before);
      resumed.load(vfs, there.path);
      EXPECT_EQ(resumed.digest(), expected)
          << "layout " << i << " from " << fmt::format("{}", fmt::join(from, " ")) << " to "
          << fmt::format("{}", fmt::join(to, " "));
      std::filesystem::remove_all(folder.at("there"));
    }
    std::filesystem::remove_all(folder.at("start"));
  }
}

// 4 -> 3 -> 8 -> 1 -> 4 ranks in the middle of a run.
TEST(Reshard, ElasticChainUsesEverySampleOnce) {
  testing::TemporaryFolder folder;
  testing::write_dataset(folder.at("data"), 32 * 200, 7);
  base::PosixVfs vfs;
  const std::vector<Case> chain = {{4, {"parallel.ep=2", "parallel.optimizer_group=2"}},
                                   {3, {}},
                                   {8, {"parallel.tp=2", "parallel.pp=2", "parallel.ep=2"}},
                                   {1, {}},
                                   {4, {"parallel.pp=2", "parallel.ep=2", "parallel.bucket_mib=0"}}};
  const std::vector<std::string> model = {"model.dtype=\"float64\"", "model.num_layers=2",
                                          "train.num_microbatches=12"};
  constexpr int64_t kStepsEach = 2;
  const int64_t rows_per_step = 12 * 32;

  std::vector<double> expected;
  {
    Trainer whole(config_for(folder, {1, {}}, model));
    for (size_t i = 0; i < chain.size() * kStepsEach; ++i) expected.push_back(whole.step().record.loss);
  }
  std::vector<int> seen(chain.size() * kStepsEach * static_cast<size_t>(rows_per_step), 0);
  std::vector<double> losses;
  std::mutex mutex;
  int64_t step = 0;
  std::filesystem::create_directories(folder.at("checkpoints"));
  for (const Case& c : chain) {
    const config::Config config = config_for(folder, c, model);
    Ranks ranks(config, c.ranks);
    ranks.each([&](runtime::Crew& crew) {
      TrainerHooks hooks;
      hooks.before_run = [&](int64_t, interpret::Executor& e) {
        if (crew.setup().place.at(program::Group::Pipeline) != 0) return;
        std::lock_guard lock(mutex);
        for (int64_t mb = 0; mb < crew.setup().num_microbatches(config); ++mb) {
          const program::ValueId id = e.find(fmt::format("mb{}.token_index", mb));
          const auto* index = static_cast<const int64_t*>(e.data(id));
          for (int64_t i = 0; i < e.program().values[static_cast<size_t>(id)].shape[0]; ++i)
            ++seen.at(static_cast<size_t>(index[i]));
        }
      };
      Trainer trainer(config, {}, hooks, &crew);
      if (step > 0) trainer.restore(checkpoint::open_step(vfs, folder.at("checkpoints"), step));
      for (int64_t i = 0; i < kStepsEach; ++i) {
        const double loss = trainer.step().record.loss;
        if (crew.leads()) losses.push_back(loss);
      }
      trainer.save(vfs, folder.at("checkpoints"), {});
    });
    step += kStepsEach;
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<int64_t>(seen.size()));
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-10 * expected[i]) << i;
}

}  // namespace
}  // namespace pleat::train
