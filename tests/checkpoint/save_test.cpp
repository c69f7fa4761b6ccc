// Saving and loading without faults: bits, retention, refusals.
#include "checkpoint/save.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "base/posix_vfs.h"
#include "checkpoint/checkpoint_support.h"
#include "checkpoint/directory.h"

namespace pleat::checkpoint {
namespace {

using base::SimVfs;

std::vector<std::string> names_in(base::Vfs& vfs, const std::string& path) { return vfs.list(path); }

TEST(Save, RoundTripKeepsEveryBit) {
  SimVfs vfs;
  const TestState state(7);
  const SaveResult result = save(vfs, "run", state.view(), small_options());
  EXPECT_EQ(result.path, "run/step-7");
  EXPECT_EQ(result.state_sha256, state.digest());
  EXPECT_FALSE(result.already_there);
  EXPECT_TRUE(result.warnings.empty());
  EXPECT_EQ(names_in(vfs, "run"), (std::vector<std::string>{"LATEST", "step-7"}));
  EXPECT_EQ(vfs.num_open_files(), 0);

  const Found found = find_newest(vfs, "run");
  ASSERT_TRUE(found.newest);
  EXPECT_TRUE(found.skipped.empty());
  const Loaded& loaded = *found.newest;
  EXPECT_GE(loaded.manifest().shards.size(), 3u);
  EXPECT_EQ(loaded.state_sha256(), state.digest());
  const StateView view = state.view();
  EXPECT_EQ(loaded.manifest().integers, view.integers);
  EXPECT_EQ(loaded.manifest().texts, view.texts);
  for (const auto& [name, value] : view.reals)
    EXPECT_EQ(std::bit_cast<uint64_t>(loaded.real(name)), std::bit_cast<uint64_t>(value)) << name;
  EXPECT_EQ(loaded.integer("step.copy"), 7);
  Targets targets(state);
  restore(loaded, targets.list());
  EXPECT_TRUE(targets.equals(state));
  for (const TestState::Tensor& t : state.tensors) {
    std::vector<std::byte> out(t.bytes.size());
    loaded.read_tensor(t.name, out);
    EXPECT_EQ(out, t.bytes) << t.name;
  }
}

TEST(Save, RoundTripAtEveryBlockAndShardSize) {
  const TestState state(1);
  for (const int64_t block : {1, 7, 64, 4096, 1 << 20})
    for (const int64_t shard : {100, 513, 4096, 1 << 20}) {
      SimVfs vfs;
      SaveOptions options;
      options.block_bytes = block;
      options.max_shard_bytes = shard;
      save(vfs, "run", state.view(), options);
      Targets targets(state);
      restore(open(vfs, "run/step-1"), targets.list());
      EXPECT_TRUE(targets.equals(state)) << block << " " << shard;
    }
}

TEST(Save, RoundTripOnTheRealDisk) {
  base::PosixVfs vfs;
  const std::string directory = ::testing::TempDir() + "pleat_save_roundtrip";
  vfs.remove_all(directory);
  const TestState state(3, 40);
  SaveOptions options;
  options.max_shard_bytes = 30000;
  save(vfs, directory, state.view(), options);
  const Found found = find_newest(vfs, directory);
  ASSERT_TRUE(found.newest);
  Targets targets(state);
  restore(*found.newest, targets.list());
  EXPECT_TRUE(targets.equals(state));
  vfs.remove_all(directory);
}

TEST(Save, StateWithoutTensors) {
  SimVfs vfs;
  StateView view;
  view.integers["cursor"] = 5;
  save(vfs, "run", view, {});
  const Found found = find_newest(vfs, "run");
  ASSERT_TRUE(found.newest);
  EXPECT_EQ(found.newest->integer("cursor"), 5);
  restore(*found.newest, {});
}

TEST(Save, RetentionKeepsTheNewestVerified) {
  SimVfs vfs;
  SaveOptions options = small_options();
  options.keep = 3;
  for (int64_t step = 1; step <= 6; ++step) {
    const SaveResult result = save(vfs, "run", TestState(step).view(), options);
    EXPECT_TRUE(result.warnings.empty());
    EXPECT_EQ(result.removed_steps, step > 3 ? std::vector<int64_t>{step - 3} : std::vector<int64_t>{});
  }
  EXPECT_EQ(names_in(vfs, "run"), (std::vector<std::string>{"LATEST", "step-4", "step-5", "step-6"}));
  EXPECT_EQ(vfs.contents("run/LATEST").size(), 7u);
}

TEST(Save, RetentionNeverCountsADamagedCheckpoint) {
  SimVfs vfs;
  for (const int64_t step : {1, 2}) save(vfs, "run", TestState(step).view(), small_options());
  auto bytes = vfs.contents("run/step-2/shard-000000");
  bytes[200] ^= std::byte{1};
  vfs.set_contents("run/step-2/shard-000000", bytes);
  const SaveResult third = save(vfs, "run", TestState(3).view(), small_options());
  EXPECT_TRUE(third.removed_steps.empty());
  ASSERT_EQ(third.warnings.size(), 1u);
  EXPECT_NE(third.warnings[0].find("not counted"), std::string::npos);
}

TEST(Save, RetentionRemovesOnlyBelowTwoVerified) {
  SimVfs vfs;
  SaveOptions many = small_options();
  many.keep = 10;
  for (const int64_t step : {1, 2, 3}) save(vfs, "run", TestState(step).view(), many);
  auto bytes = vfs.contents("run/step-3/shard-000000");
  bytes[200] ^= std::byte{1};
  vfs.set_contents("run/step-3/shard-000000", bytes);
  const SaveResult result = save(vfs, "run", TestState(4).view(), small_options());
  EXPECT_EQ(result.removed_steps, std::vector<int64_t>{1});
  ASSERT_EQ(result.warnings.size(), 1u);
  EXPECT_NE(result.warnings[0].find("step-3/shard-000000"), std::string::npos);
  EXPECT_EQ(list_checkpoints(vfs, "run").steps, (std::vector<int64_t>{4, 3, 2}));
}

TEST(Save, SameStepSameStateIsNoWork) {
  SimVfs vfs;
  const TestState state(2);
  const SaveResult first = save(vfs, "run", state.view(), small_options());
  const SaveResult second = save(vfs, "run", state.view(), small_options());
  EXPECT_TRUE(second.already_there);
  EXPECT_EQ(first.manifest_sha256, second.manifest_sha256);
  TestState other(2);
  other.tensors[0].bytes[0] ^= std::byte{1};
  const Thrown thrown = thrown_by([&] { save(vfs, "run", other.view(), small_options()); });
  EXPECT_EQ(thrown.code, base::ExitCode::BadInput);
  EXPECT_NE(thrown.message.find("holds another state"), std::string::npos);
  EXPECT_EQ(find_newest(vfs, "run").newest->state_sha256(), state.digest());
}

TEST(Save, DamagedStepIsReplaced) {
  SimVfs vfs;
  const TestState state(2);
  save(vfs, "run", state.view(), small_options());
  auto bytes = vfs.contents("run/step-2/shard-000001");
  bytes.pop_back();
  vfs.set_contents("run/step-2/shard-000001", bytes);
  const SaveResult again = save(vfs, "run", state.view(), small_options());
  EXPECT_FALSE(again.already_there);
  ASSERT_EQ(again.warnings.size(), 1u);
  EXPECT_NE(again.warnings[0].find("damaged checkpoint replaced"), std::string::npos);
  EXPECT_EQ(breach(vfs, "run", {{2, state.digest()}}, {2}), "");
  EXPECT_EQ(names_in(vfs, "run"), (std::vector<std::string>{"LATEST", "step-2"}));
}

TEST(Save, UnchangedTensorsAreReported) {
  SimVfs vfs;
  TestState state(1);
  save(vfs, "run", state.view(), small_options());
  StateView later = state.view();
  later.step = 2;
  const SaveResult result = save(vfs, "run", later, small_options());
  ASSERT_EQ(result.warnings.size(), 1u);
  EXPECT_EQ(result.warnings[0], "no tensor changed between step 1 and step 2");
}

TEST(Save, ManifestChainsToItsParent) {
  SimVfs vfs;
  const SaveResult first = save(vfs, "run", TestState(1).view(), small_options());
  save(vfs, "run", TestState(5).view(), small_options());
  EXPECT_FALSE(open(vfs, "run/step-1").manifest().parent);
  const auto parent = open(vfs, "run/step-5").manifest().parent;
  ASSERT_TRUE(parent);
  EXPECT_EQ(parent->step, 1);
  EXPECT_EQ(base::to_hex(parent->manifest_sha256), first.manifest_sha256);
}

TEST(Save, LeftoversOfDeadSavesGo) {
  SimVfs vfs;
  vfs.mkdir("run");
  vfs.mkdir("run/step-9.tmp-0");
  vfs.close(vfs.create("run/step-9.tmp-0/shard-000000"), "");
  vfs.close(vfs.create("run/LATEST.tmp-4"), "");
  vfs.close(vfs.create("run/notes.txt"), "");
  save(vfs, "run", TestState(1).view(), small_options());
  EXPECT_EQ(names_in(vfs, "run"), (std::vector<std::string>{"LATEST", "notes.txt", "step-1"}));
}

// Memory that changes while it is saved must not become a checkpoint.
class ChangingVfs : public SimVfs {
 public:
  explicit ChangingVfs(std::byte& victim) : victim_(victim) {}
  int create(const std::string& path) override {
    if (num_created_++ == 0) victim_ ^= std::byte{1};
    return SimVfs::create(path);
  }

 private:
  std::byte& victim_;
  int num_created_ = 0;
};

TEST(Save, StateThatChangesDuringTheSaveIsRefused) {
  TestState state(1);
  ChangingVfs vfs(state.tensors[2].bytes[0]);
  const Thrown thrown = thrown_by([&] { save(vfs, "run", state.view(), small_options()); });
  EXPECT_EQ(thrown.code, base::ExitCode::Storage);
  EXPECT_NE(thrown.message.find("optimizer.m.layer.0.weight"), std::string::npos) << thrown.message;
  EXPECT_FALSE(find_newest(vfs, "run").newest);
}

TEST(Save, BadStatesAndOptionsAreRefused) {
  SimVfs vfs;
  const TestState state(1);
  const auto refused = [&](const char* part, const StateView& view, SaveOptions options = small_options()) {
    const Thrown thrown = thrown_by([&] { save(vfs, "run", view, options); });
    EXPECT_EQ(thrown.code, base::ExitCode::BadInput);
    EXPECT_NE(thrown.message.find(part), std::string::npos) << thrown.message;
  };
  StateView view = state.view();
  view.tensors.push_back(view.tensors[0]);
  refused("two tensors are named 'layer.0.weight'", view);
  view = state.view();
  view.tensors[0].bytes = view.tensors[0].bytes.host().first(8);
  refused("has 8 bytes of memory; its shape needs 2080", view);
  view = state.view();
  view.tensors[0].shape = {int64_t{1} << 32, int64_t{1} << 32};
  refused("more than", view);
  view = state.view();
  view.tensors[0].shape = {-1, -520};
  refused("negative extent", view);
  view = state.view();
  view.step = -1;
  refused("step -1 is negative", view);
  view = state.view();
  view.integers["\xff"] = 1;
  refused("not valid UTF-8", view);
  view = state.view();
  view.tensors[0].name = std::string(1025, 'x');
  refused("1025 bytes", view);
  view.tensors[0].name = "";
  refused("0 bytes", view);
  SaveOptions options = small_options();
  options.keep = 1;
  refused("at least 2", state.view(), options);
  options = small_options();
  options.block_bytes = 0;
  refused("block_bytes", state.view(), options);
  EXPECT_FALSE(vfs.stat("run")) << "nothing is written for a state that cannot be saved";
}

TEST(State, DigestSeesEverything) {
  const TestState state(1);
  const std::string digest = state.digest();
  StateView view = state.view();
  std::reverse(view.tensors.begin(), view.tensors.end());
  EXPECT_EQ(state_sha256(view), digest) << "order must not matter";
  const auto changed = [&](auto&& change) {
    StateView other = state.view();
    change(other);
    return state_sha256(other) != digest;
  };
  EXPECT_TRUE(changed([](StateView& v) { v.step = 2; }));
  EXPECT_TRUE(changed([](StateView& v) { v.tensors[0].name += "x"; }));
  EXPECT_TRUE(changed([](StateView& v) { v.tensors[0].dtype = tensor::Dtype::I32; }));
  EXPECT_TRUE(changed([](StateView& v) { std::swap(v.tensors[0].shape[0], v.tensors[0].shape[1]); }));
  EXPECT_TRUE(changed([](StateView& v) { v.tensors.pop_back(); }));
  EXPECT_TRUE(changed([](StateView& v) { v.integers["zero"] = 1; }));
  EXPECT_TRUE(changed([](StateView& v) { v.reals["minus_zero"] = 0.0; }));
  EXPECT_TRUE(changed([](StateView& v) { v.texts["empty"] = " "; }));
  EXPECT_TRUE(changed([](StateView& v) {
    v.texts.erase("empty");
    v.texts["empt"] = "y";
  }));
  TestState flipped(1);
  flipped.tensors[3].bytes[119] ^= std::byte{0x80};
  EXPECT_NE(flipped.digest(), digest);
}

}  // namespace
}  // namespace pleat::checkpoint
