// Damaged and hostile checkpoints: every one is refused before a byte of the targets changes, with a message
// that names what is wrong.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "base/posix_vfs.h"
#include "checkpoint/checkpoint_support.h"
#include "checkpoint/shard.h"

namespace pleat::checkpoint {
namespace {

using base::SimVfs;

class Damage : public ::testing::Test {
 protected:
  void SetUp() override {
    save(vfs_, "run", other_.view(), small_options());
    save(vfs_, "run", state_.view(), small_options());
    for (const std::string& name : vfs_.list("run/step-2")) files_.push_back("run/step-2/" + name);
  }

  // Opening and restoring step-2 must throw and change no target.
  Thrown refused() {
    Targets targets(state_);
    const Thrown thrown = thrown_by([&] { restore(open(vfs_, "run/step-2"), targets.list()); });
    EXPECT_TRUE(targets.untouched());
    return thrown;
  }
  void expect_message(const Thrown& thrown, const std::string& part) {
    EXPECT_NE(thrown.message.find(part), std::string::npos) << thrown.message;
  }

  SimVfs vfs_;
  const TestState other_{1}, state_{2};
  std::vector<std::string> files_;
};

TEST_F(Damage, TenThousandBitFlipsAreAllFound) {
  std::mt19937_64 rng(20);
  std::vector<std::vector<std::byte>> originals;
  size_t total = 0;
  for (const std::string& file : files_) {
    originals.push_back(vfs_.contents(file));
    total += originals.back().size();
  }
  for (int flip = 0; flip < 10000; ++flip) {
    size_t at = rng() % total, file_idx = 0;
    while (at >= originals[file_idx].size()) at -= originals[file_idx++].size();
    auto bytes = originals[file_idx];
    bytes[at] ^= static_cast<std::byte>(1u << (rng() % 8));
    vfs_.set_contents(files_[file_idx], bytes);
    const Thrown thrown = refused();
    ASSERT_EQ(thrown.code, base::ExitCode::Storage) << files_[file_idx] << " byte " << at;
    ASSERT_NE(thrown.message.find(files_[file_idx]), std::string::npos) << thrown.message;
    vfs_.set_contents(files_[file_idx], originals[file_idx]);
    if (HasFailure()) return;
  }
  Targets targets(state_);
  restore(open(vfs_, "run/step-2"), targets.list());
  EXPECT_TRUE(targets.equals(state_));
}

TEST_F(Damage, TheMessageNamesFileBlockAndTensor) {
  const ShardLayout layout = ShardLayout::of(open(vfs_, "run/step-2").manifest(), 1);
  auto bytes = vfs_.contents("run/step-2/shard-000001");
  bytes[static_cast<size_t>(layout.block_position(2) + kBlockHeaderBytes + 5)] ^= std::byte{8};
  vfs_.set_contents("run/step-2/shard-000001", bytes);
  const Thrown thrown = refused();
  expect_message(thrown, "run/step-2/shard-000001: damaged: CRC-32C is ");
  expect_message(thrown, "(block 2 of 4, tensor 'optimizer.m.layer.0.weight')");
  const Found found = find_newest(vfs_, "run");
  ASSERT_TRUE(found.newest);
  EXPECT_EQ(found.newest->step(), 1);
  ASSERT_EQ(found.skipped.size(), 1u);
  EXPECT_EQ(found.skipped[0].name, "step-2");
  EXPECT_NE(found.skipped[0].reason.find("block 2 of 4"), std::string::npos);
}

TEST_F(Damage, EveryTruncationIsFound) {
  for (const std::string& file : files_) {
    const auto original = vfs_.contents(file);
    const size_t stride = file.ends_with("MANIFEST") ? 1 : 3;
    for (size_t length = 0; length < original.size(); length += stride) {
      vfs_.set_contents(file, {original.begin(), original.begin() + static_cast<std::ptrdiff_t>(length)});
      ASSERT_EQ(refused().code, base::ExitCode::Storage) << file << " " << length;
    }
    auto longer = original;
    longer.push_back(std::byte{0});
    vfs_.set_contents(file, longer);
    refused();
    vfs_.set_contents(file, original);
  }
}

TEST_F(Damage, SwappedForeignAndDoubledPartsAreFound) {
  const auto first = vfs_.contents("run/step-2/shard-000000"),
             second = vfs_.contents("run/step-2/shard-000001");
  ASSERT_EQ(first.size(), second.size());
  vfs_.set_contents("run/step-2/shard-000000", second);
  vfs_.set_contents("run/step-2/shard-000001", first);
  expect_message(refused(), "shard number is 0x1; 0x0 was expected");
  vfs_.set_contents("run/step-2/shard-000001", second);

  vfs_.set_contents("run/step-2/shard-000000", vfs_.contents("run/step-1/shard-000000"));
  expect_message(refused(), "step is 0x1; 0x2 was expected");

  // The header of this step over the blocks of the other one.
  auto mixed = vfs_.contents("run/step-1/shard-000000");
  std::copy_n(first.begin(), kShardHeaderBytes, mixed.begin());
  vfs_.set_contents("run/step-2/shard-000000", mixed);
  expect_message(refused(), "mark of the checkpoint");

  const ShardLayout layout = ShardLayout::of(open(vfs_, "run/step-2").manifest(), 0);
  auto doubled = first;
  std::copy_n(first.begin() + layout.block_position(1), kBlockHeaderBytes + 512,
              doubled.begin() + layout.block_position(2));
  vfs_.set_contents("run/step-2/shard-000000", doubled);
  expect_message(refused(), "block number is 0x1; 0x2 was expected");

  auto zeroed = first;
  std::fill_n(zeroed.begin() + 1024, 512, std::byte{0});
  vfs_.set_contents("run/step-2/shard-000000", zeroed);
  refused();
  vfs_.set_contents("run/step-2/shard-000000", std::vector<std::byte>(first.size()));
  expect_message(refused(), "magic is 0x0");
  vfs_.set_contents("run/step-2/shard-000000", first);

  vfs_.set_contents("run/step-2/MANIFEST", vfs_.contents("run/step-1/MANIFEST"));
  refused();
  const Found found = find_newest(vfs_, "run");
  EXPECT_EQ(found.newest->step(), 1) << "step-2 with the manifest of step 1 is no checkpoint";
}

TEST_F(Damage, MissingAndExtraFilesAreFound) {
  vfs_.close(vfs_.create("run/step-2/extra"), "");
  expect_message(refused(), "run/step-2/extra: a file the manifest does not list");
  vfs_.unlink("run/step-2/extra");
  vfs_.unlink("run/step-2/shard-000002");
  expect_message(refused(), "run/step-2/shard-000002: there is no such file");
  vfs_.unlink("run/step-2/MANIFEST");
  expect_message(refused(), "run/step-2/MANIFEST: there is no such file");
  expect_message(thrown_by([&] { open(vfs_, "run/step-77"); }), "'run/step-77' is not a directory");
}

TEST_F(Damage, LatestIsOnlyAHint) {
  for (const char* text : {"", "step-1\n", "step-9\n", "step-2", "\xff\xff", "../../x\n"}) {
    const std::string_view view = text;
    const auto bytes = std::as_bytes(std::span(view.data(), view.size()));
    vfs_.set_contents("run/LATEST", {bytes.begin(), bytes.end()});
    const Found found = find_newest(vfs_, "run");
    EXPECT_EQ(found.newest->step(), 2);
    EXPECT_EQ(found.skipped.size(), view == "step-1\n" ? 0u : 1u) << view;
  }
  vfs_.set_contents("run/LATEST", std::vector<std::byte>(100));
  EXPECT_EQ(find_newest(vfs_, "run").skipped.at(0).name, "LATEST");
}

TEST_F(Damage, RestoreListsWhatDoesNotFit) {
  const Loaded loaded = open(vfs_, "run/step-2");
  Targets targets(state_);
  std::vector<Target> list = targets.list();
  std::vector<std::byte> room(12);
  list[0].shape = {65, 8};
  list[4].name = "tokens2";
  list.push_back({"more", tensor::Dtype::F32, {3}, room});
  const Thrown thrown = thrown_by([&] { restore(loaded, list); });
  EXPECT_EQ(thrown.code, base::ExitCode::BadInput);
  expect_message(thrown, "'layer.0.weight': f32[8, 65] in the checkpoint, f32[65, 8] asked for");
  expect_message(thrown, "only in the checkpoint: 'tokens'");
  expect_message(thrown, "missing in the checkpoint: 'tokens2'");
  expect_message(thrown, "missing in the checkpoint: 'more'");
  EXPECT_TRUE(targets.untouched());

  list = targets.list();
  list[0].dtype = tensor::Dtype::I32;
  expect_message(thrown_by([&] { restore(loaded, list); }),
                 "f32[8, 65] in the checkpoint, i32[8, 65] asked for");
  list = targets.list();
  list[1].bytes = list[1].bytes.host().first(3);
  expect_message(thrown_by([&] { restore(loaded, list); }), "3 bytes of memory");
  list = targets.list();
  list.push_back(list[0]);
  expect_message(thrown_by([&] { restore(loaded, list); }), "asked for twice");
  expect_message(thrown_by([&] { loaded.read_tensor("layer.0.weight", room); }), "the buffer has 12");
  expect_message(thrown_by([&] { loaded.read_tensor("nothing", room); }), "no tensor named 'nothing'");
  expect_message(thrown_by([&] { loaded.integer("nothing"); }), "no integer named 'nothing'");
  EXPECT_TRUE(targets.untouched());
}

TEST(DamageOnDisk, LinksAndPipesAreNotFollowed) {
  base::PosixVfs vfs;
  const std::string directory = ::testing::TempDir() + "pleat_links";
  vfs.remove_all(directory);
  const TestState state(1);
  save(vfs, directory, state.view(), small_options());
  const std::string shard = directory + "/step-1/shard-000000";
  std::filesystem::rename(shard, directory + "/moved");
  std::filesystem::create_symlink("../moved", shard);
  Targets targets(state);
  const Thrown thrown = thrown_by([&] { restore(open(vfs, directory + "/step-1"), targets.list()); });
  EXPECT_NE(thrown.message.find("not a regular file"), std::string::npos) << thrown.message;
  vfs.remove_all(directory);
}

}  // namespace
}  // namespace pleat::checkpoint
