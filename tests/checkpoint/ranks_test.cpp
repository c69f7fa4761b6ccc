// Checkpoints that several ranks write together: the same state whoever wrote it, files of their own, every fault of
// any rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <random>

#include "base/posix_vfs.h"
#include "checkpoint/directory.h"
#include "checkpoint/ranks_support.h"
#include "checkpoint/shared_folder.h"

namespace pleat::checkpoint {
namespace {

using base::SimVfs;

const std::string kRanksRun = "run";

// Who did what.
class WatchedVfs : public SimVfs {
 public:
  int create(const std::string& path) override {
    created[path] = running_rank();
    return SimVfs::create(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    EXPECT_EQ(running_rank(), 0) << from;
    SimVfs::rename(from, to);
  }
  size_t pread(int file, const std::string& path, std::span<std::byte> out, int64_t offset) override {
    const size_t got = SimVfs::pread(file, path, out, offset);
    read[running_rank()] += static_cast<int64_t>(got);
    return got;
  }
  std::map<std::string, int> created;
  std::map<int, int64_t> read;
};

TEST(RanksSave, TheStateIsThatOfOneRank) {
  for (const int num_ranks : {1, 2, 3, 5, 9}) {
    SimVfs vfs;
    const TestState state(7);
    const SaveResult result = save_together(vfs, kRanksRun, state, num_ranks);
    EXPECT_EQ(result.state_sha256, state.digest()) << num_ranks;
    EXPECT_EQ(result.path, "run/step-7");
    EXPECT_TRUE(result.warnings.empty());
    EXPECT_EQ(vfs.num_open_files(), 0);
    const Found found = find_newest(vfs, kRanksRun);
    ASSERT_TRUE(found.newest);
    EXPECT_TRUE(found.skipped.empty());
    Targets targets(state);
    restore(*found.newest, targets.list());
    EXPECT_TRUE(targets.equals(state)) << num_ranks;
  }
}

TEST(RanksSave, AnyPartCanBeRead) {
  SimVfs vfs;
  const TestState state(2);
  save_together(vfs, kRanksRun, state, 4);
  const Loaded loaded = open(vfs, "run/step-2");
  PartReader reader(loaded);
  std::mt19937_64 rng(5);
  for (int i = 0; i < 2000; ++i) {
    const TestState::Tensor& t = state.tensors[rng() % state.tensors.size()];
    if (t.bytes.empty()) continue;
    const auto length = static_cast<int64_t>(t.bytes.size());
    const auto begin = static_cast<int64_t>(rng() % t.bytes.size());
    const Part part{begin, 0, 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(length - begin))};
    std::vector<std::byte> out(static_cast<size_t>(part.count));
    reader.read(t.name, {&part, 1}, out);
    ASSERT_TRUE(std::equal(out.begin(), out.end(), t.bytes.begin() + begin)) << t.name;
  }
}

// Every rank writes what it owns and reads back about as much; the leader alone writes the manifest and renames.
TEST(RanksSave, EveryRankWritesFilesOfItsOwn) {
  constexpr int kRanks = 4;
  WatchedVfs vfs;
  const TestState state(3, 20);
  SaveOptions options;
  options.block_bytes = 512;
  save_together(vfs, kRanksRun, state, kRanks, options);
  std::map<int, int> shards;
  for (const auto& [path, rank] : vfs.created) {
    if (path.find("/shard-") != std::string::npos)
      ++shards[rank];
    else
      EXPECT_EQ(rank, 0) << path;
  }
  int64_t all = 0;
  for (const auto& [rank, bytes] : vfs.read) all += bytes;
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(shards[r], 1) << r;
    EXPECT_LT(vfs.read[r], all * 6 / 10) << "two tensors are nearly all of the state";
  }
}

TEST(RanksSave, TheSameStepByOtherRanksIsNoWork) {
  SimVfs vfs;
  const TestState state(2);
  const SaveResult first = save_together(vfs, kRanksRun, state, 3);
  for (const int num_ranks : {1, 2, 3}) {
    const SaveResult again = save_together(vfs, kRanksRun, state, num_ranks);
    EXPECT_TRUE(again.already_there);
    EXPECT_EQ(again.manifest_sha256, first.manifest_sha256);
    EXPECT_EQ(again.state_sha256, state.digest());
  }
  for (const size_t tensor : {0u, 2u, 5u}) {
    TestState other(2);
    other.tensors[tensor].bytes.back() ^= std::byte{1};
    const Thrown thrown = thrown_by([&] { save_together(vfs, kRanksRun, other, 3); });
    EXPECT_EQ(thrown.code, base::ExitCode::BadInput);
    EXPECT_NE(thrown.message.find("holds another state"), std::string::npos);
  }
}

TEST(RanksSave, SharesThatDoNotFitTogetherAreRefusedBeforeAnythingIsWritten) {
  const TestState state(1);
  const auto refusal = [&](const std::function<void(Share&)>& change, const std::string& part) {
    SimVfs vfs;
    const SplitState split(state, 3);
    const std::vector<std::exception_ptr> thrown = run_ranks(3, [&](Peers& peers) {
      Share share = split.share(peers.rank());
      if (peers.rank() == 1) change(share);
      save(vfs, kRanksRun, share, small_options(), peers);
    });
    for (const std::exception_ptr& error : thrown) {
      ASSERT_TRUE(error);
      const Thrown said = thrown_by([&] { std::rethrow_exception(error); });
      EXPECT_NE(said.message.find(part), std::string::npos) << said.message;
    }
    EXPECT_FALSE(vfs.stat(kRanksRun));
  };
  refusal([](Share& s) { s.step = 2; }, "rank 1 saves another state than rank 0");
  refusal([](Share& s) { s.tensors.pop_back(); }, "rank 1 saves another state than rank 0");
  refusal([](Share& s) { s.tensors[0].parts = [] { return std::vector<Part>{}; }; },
          "of tensor 'layer.0.weight' are in no shard");
  refusal([](Share& s) { s.tensors[2].parts = [] {
                           return std::vector<Part>{{0, 0, 1}};
                         }; },
          "of tensor 'optimizer.m.layer.0.weight' are there twice");
  refusal([](Share& s) { s.tensors[0].bytes = s.tensors[0].bytes.host().first(3); }, "rank 1: ");
}

TEST(RanksSave, ALostRankEndsTheSaveAndNothingIsCommitted) {
  const TestState state(1);
  for (const int lost : {0, 1, 2})
    for (int64_t after = 0; after < 4; ++after) {
      // Its disk is gone, and it with it, at the n-th file it makes.
      class LosingVfs : public SimVfs {
       public:
        LosingVfs(int rank, int64_t left) : rank_(rank), left_(left) {}
        int create(const std::string& path) override {
          if (running_rank() == rank_ && left_-- == 0) throw 1;
          return SimVfs::create(path);
        }

       private:
        int rank_;
        int64_t left_;
      };
      LosingVfs vfs(lost, after);
      const SplitState split(state, 3);
      const std::vector<std::exception_ptr> thrown = run_ranks(
          3, [&](Peers& peers) { save(vfs, kRanksRun, split.share(peers.rank()), small_options(), peers); });
      const bool hit = thrown[static_cast<size_t>(lost)] != nullptr;
      for (const std::exception_ptr& error : thrown) EXPECT_EQ(error != nullptr, hit);
      const bool committed = find_newest(vfs, kRanksRun).newest.has_value();
      EXPECT_TRUE(hit || committed);
      EXPECT_FALSE(hit && lost != 0 && committed);
    }
}

struct RanksScenario {
  SimVfs disk;  // two older checkpoints, all durable
  std::map<int64_t, std::string> digests;
};

RanksScenario after_two(int num_ranks) {
  RanksScenario s;
  for (const int64_t step : {1, 2, 3, 4}) s.digests[step] = TestState(step).digest();
  for (const int64_t step : {1, 2}) save_together(s.disk, kRanksRun, TestState(step), num_ranks);
  std::mt19937_64 rng(1);
  s.disk.crash(base::CrashMode::KeepAll, rng);
  s.disk.reset_faults();
  return s;
}

TEST(RanksSave, PowerLossAtEveryOperation) {
  for (const int num_ranks : {2, 3}) {
    const RanksScenario scenario = after_two(num_ranks);
    bool returned = false;
    int64_t num_states = 0;
    for (int64_t operation = 0; !returned; ++operation) {
      ASSERT_LT(operation, 2000);
      SimVfs disk = scenario.disk;
      disk.lose_power_at(operation);
      try {
        save_together(disk, kRanksRun, TestState(3), num_ranks);
        returned = true;
      } catch (const base::PowerLoss&) {
      }
      for (int sample = 0; sample < 12; ++sample, ++num_states) {
        std::mt19937_64 rng(static_cast<uint64_t>(operation * 100 + sample));
        SimVfs after = disk;
        after.crash(base::kCrashModes[sample % std::size(base::kCrashModes)], rng);
        ASSERT_EQ(breach(after, kRanksRun, scenario.digests,
                         returned ? std::vector<int64_t>{3} : std::vector<int64_t>{2, 3}),
                  "")
            << num_ranks << " ranks, operation " << operation << ", sample " << sample;
      }
    }
    EXPECT_GT(num_states, 1000);
  }
}

// Every operation of every rank fails, once or from then on. All ranks say so and name the one it happened to.
TEST(RanksSave, EveryFailingOperation) {
  constexpr int kRanks = 3;
  const RanksScenario scenario = after_two(kRanks);
  SimVfs clean = scenario.disk;
  save_together(clean, kRanksRun, TestState(3), kRanks);
  std::map<std::string, int> named;
  for (int64_t operation = 0; operation < clean.num_operations(); ++operation)
    for (const int error : {ENOSPC, EIO})
      for (const base::Fault fault : {base::Fault::Once, base::Fault::Forever}) {
        SCOPED_TRACE(fmt::format("operation {}, errno {}", operation, error));
        SimVfs disk = scenario.disk;
        disk.fail_at(operation, error, fault);
        bool returned = false;
        try {
          save_together(disk, kRanksRun, TestState(3), kRanks);
          returned = true;
        } catch (const base::Error& e) {
          ASSERT_EQ(e.code(), base::ExitCode::Storage) << e.what();
          const std::string said = e.what();
          for (const char* rank : {"rank 0: ", "rank 1: ", "rank 2: "})
            if (said.find(rank) != std::string::npos) ++named[rank];
        }
        ASSERT_EQ(disk.num_open_files(), 0);
        ASSERT_EQ(disk.num_fsyncs_after_failure(), 0);
        disk.reset_faults();
        ASSERT_EQ(breach(disk, kRanksRun, scenario.digests,
                         returned ? std::vector<int64_t>{3} : std::vector<int64_t>{2, 3}),
                  "");
        save_together(disk, kRanksRun, TestState(4), kRanks);
        ASSERT_TRUE(list_checkpoints(disk, kRanksRun).leftovers.empty());
        ASSERT_EQ(breach(disk, kRanksRun, scenario.digests, {4}), "");
      }
  EXPECT_EQ(named.size(), 3u);
}

class RanksDamage : public ::testing::Test {
 protected:
  void SetUp() override { save_together(vfs_, kRanksRun, state_, 3); }
  Thrown refused() {
    Targets targets(state_);
    const Thrown thrown = thrown_by([&] { restore(open(vfs_, "run/step-2"), targets.list()); });
    EXPECT_TRUE(targets.untouched());
    return thrown;
  }
  // The manifest with one text for another, its own digest made right.
  void edit_manifest(const std::string& from, const std::string& to) {
    std::string text = base::read_file(vfs_, "run/step-2/MANIFEST", 1 << 20);
    text.resize(text.rfind("sha256 "));
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    text += "sha256 " + base::to_hex(base::sha256(text)) + "\n";
    const auto bytes = std::as_bytes(std::span(text));
    vfs_.set_contents("run/step-2/MANIFEST", {bytes.begin(), bytes.end()});
  }

  SimVfs vfs_;
  const TestState state_{2};
};

TEST_F(RanksDamage, EveryShareIsMissedAndEveryBitOfItFound) {
  std::mt19937_64 rng(4);
  for (const std::string& name : vfs_.list("run/step-2")) {
    const std::string file = "run/step-2/" + name;
    const auto original = vfs_.contents(file);
    vfs_.unlink(file);
    EXPECT_NE(refused().message.find(file + ": there is no such file"), std::string::npos);
    vfs_.close(vfs_.create(file), "");
    for (int i = 0; i < 300; ++i) {
      auto bytes = original;
      bytes[rng() % bytes.size()] ^= static_cast<std::byte>(1u << (rng() % 8));
      vfs_.set_contents(file, bytes);
      const Thrown thrown = refused();
      ASSERT_EQ(thrown.code, base::ExitCode::Storage);
      ASSERT_NE(thrown.message.find(file), std::string::npos) << thrown.message;
      bytes = original;
      bytes.resize(rng() % bytes.size());
      vfs_.set_contents(file, bytes);
      ASSERT_EQ(refused().code, base::ExitCode::Storage);
    }
    vfs_.set_contents(file, original);
  }
  Targets targets(state_);
  restore(open(vfs_, "run/step-2"), targets.list());
  EXPECT_TRUE(targets.equals(state_));
}

TEST_F(RanksDamage, ManifestsThatListSlicesTwiceOrNotAtAllAreRefused) {
  // The columns of rank 1 begin where those of rank 0 end.
  const std::string real = base::read_file(vfs_, "run/step-2/MANIFEST", 1 << 20);
  ASSERT_NE(real.find("\"row_begin\": 0, \"row_end\": 8, \"byte_begin\": 86, \"byte_end\": 173"),
            std::string::npos);
  const auto reset = [&] {
    const auto bytes = std::as_bytes(std::span(real));
    vfs_.set_contents("run/step-2/MANIFEST", {bytes.begin(), bytes.end()});
  };
  const auto expect = [&](const std::string& from, const std::string& to, const std::string& part) {
    edit_manifest(from, to);
    const Thrown thrown = refused();
    EXPECT_EQ(thrown.code, base::ExitCode::BadInput);
    EXPECT_NE(thrown.message.find(part), std::string::npos) << thrown.message;
    reset();
  };
  // Shifted by a byte: of the same length, so that only the sweep can tell.
  expect("\"byte_begin\": 86, \"byte_end\": 173", "\"byte_begin\": 85, \"byte_end\": 172",
         "bytes 85 to 86 of tensor 'layer.0.weight' are there twice, in 'shard-000000' and in 'shard-0000");
  expect("\"byte_begin\": 86, \"byte_end\": 173", "\"byte_begin\": 87, \"byte_end\": 174",
         "of tensor 'layer.0.weight' are there twice");
  expect("\"byte_begin\": 86, \"byte_end\": 173", "\"byte_begin\": 86, \"byte_end\": 172", "");
  expect("\"byte_begin\": 86, \"byte_end\": 173", "\"byte_begin\": 173, \"byte_end\": 86",
         "impossible rows or bytes");
  expect("\"row_begin\": 0, \"row_end\": 8, \"byte_begin\": 86",
         "\"row_begin\": 0, \"row_end\": 9007199254740992, \"byte_begin\": 86", "");
  expect("\"tensor\": 0", "\"tensor\": 77", "slice 0 is of tensor 77; there are 8");
  expect("\"slices\": [", "\"slices\": [[", "must not hold an array");
}

// Digests of slices and of tensors are compared, each for itself.
TEST_F(RanksDamage, DigestsAreCompared) {
  const Manifest manifest = open(vfs_, "run/step-2").manifest();
  for (size_t t = 0; t < manifest.tensors.size(); ++t) {
    Manifest other = manifest;
    other.tensors[t].sha256[5] ^= std::byte{1};
    other.state_sha256 = digest_of_state(other);
    const std::string text = print_manifest(other);
    const auto bytes = std::as_bytes(std::span(text));
    vfs_.set_contents("run/step-2/MANIFEST", {bytes.begin(), bytes.end()});
    const Thrown thrown = refused();
    EXPECT_NE(thrown.message.find(fmt::format("'{}' does not have the SHA-256", manifest.tensors[t].name)),
              std::string::npos)
        << thrown.message;
  }
}

TEST_F(RanksDamage, OneOfANewerVersionIsNotReplaced) {
  edit_manifest("\"version\": 2", "\"version\": 4");
  const auto before = vfs_.contents("run/step-2/MANIFEST");
  const Thrown thrown = thrown_by([&] { save_together(vfs_, kRanksRun, state_, 3); });
  EXPECT_NE(thrown.message.find("written by a newer Pleat"), std::string::npos) << thrown.message;
  EXPECT_EQ(vfs_.contents("run/step-2/MANIFEST"), before);
}

// It says nothing about the checkpoint, which another save must not replace.
TEST(RanksSave, AFaultOfOneRankIsNoDamage) {
  class PoorVfs : public SimVfs {
   public:
    size_t pread(int file, const std::string& path, std::span<std::byte> out, int64_t offset) override {
      if (poor && running_rank() == 1) throw std::bad_alloc();
      return SimVfs::pread(file, path, out, offset);
    }
    bool poor = false;
  };
  PoorVfs vfs;
  const TestState state(2);
  const SaveResult first = save_together(vfs, kRanksRun, state, 3);
  vfs.poor = true;
  const Thrown thrown = thrown_by([&] { save_together(vfs, kRanksRun, state, 3); });
  EXPECT_EQ(thrown.code, base::ExitCode::Internal);
  EXPECT_NE(thrown.message.find("rank 1: "), std::string::npos) << thrown.message;
  vfs.poor = false;
  EXPECT_TRUE(save_together(vfs, kRanksRun, state, 3).already_there);
  EXPECT_EQ(base::to_hex(open(vfs, first.path).manifest_sha256()), first.manifest_sha256);
}

// A disk of its own for one of three ranks; the first two share theirs.
class Disks {
 public:
  base::Vfs& of(int rank) { return rank == 2 ? other : shared; }
  std::vector<std::exception_ptr> save_all(const TestState& state) {
    const SplitState split(state, 3);
    return run_ranks(3, [&](Peers& peers) {
      save(of(peers.rank()), kRanksRun, split.share(peers.rank()), small_options(), peers);
    });
  }
  SimVfs shared, other;
};

void expect_all_say(const std::vector<std::exception_ptr>& thrown, const std::string& part) {
  for (const std::exception_ptr& error : thrown) {
    ASSERT_TRUE(error);
    const Thrown said = thrown_by([&] { std::rethrow_exception(error); });
    EXPECT_NE(said.message.find(part), std::string::npos) << said.message;
  }
}

TEST(RanksVerify, ARankThatSeesOtherFilesIsNamedAndNothingIsReplaced) {
  const TestState state(2);
  Disks disks;
  const SaveResult first = save_together(disks.shared, kRanksRun, state, 3);
  expect_all_say(disks.save_all(state), "rank 2: does not see 'run/step-2' as rank 0 does");
  // Another checkpoint of the same name.
  SaveOptions options = small_options();
  options.block_bytes += 1;
  save_together(disks.other, kRanksRun, state, 3, options);
  expect_all_say(disks.save_all(state), "its manifest is another");
  EXPECT_EQ(base::to_hex(open(disks.shared, first.path).manifest_sha256()), first.manifest_sha256);
}

TEST(SharedFolder, IsSeenByAllOrTheRankIsNamed) {
  const auto ask = [](Disks& disks, int size) {
    return run_ranks(size, [&](Peers& peers) {
      require_shared(disks.of(peers.rank()), kRanksRun, peers, std::chrono::milliseconds(0));
    });
  };
  Disks disks;
  disks.shared.mkdir(kRanksRun), disks.other.mkdir(kRanksRun);
  for (const std::exception_ptr& error : ask(disks, 2)) EXPECT_FALSE(error);
  expect_all_say(ask(disks, 3), "rank 2: does not see what rank 0 has put into 'run'");
  EXPECT_TRUE(disks.shared.list(kRanksRun).empty()) << "the word is removed";
}

TEST(RanksVerify, RangesCoverTheTensorsInTurn) {
  SimVfs vfs;
  save_together(vfs, kRanksRun, TestState(1), 2);
  const Manifest manifest = open(vfs, "run/step-1").manifest();
  for (const int size : {1, 2, 3, 8, 100}) {
    size_t next = 0;
    for (int r = 0; r < size; ++r) {
      const TensorRange range = range_for(manifest, r, size);
      EXPECT_EQ(range.begin, next);
      EXPECT_LE(range.begin, range.end);
      next = range.end;
    }
    EXPECT_EQ(next, manifest.tensors.size());
  }
}

// Files of version 1, as a program of then wrote them: one writer, no slices.
TEST(OldCheckpoints, Version1LoadsAndIsGoneOnFrom) {
  base::PosixVfs real;
  const std::string folder = PLEAT_SOURCE_DIR "/tests/checkpoint/version_1/step-3";
  const TestState state(3);
  const Loaded loaded = open(real, folder);
  EXPECT_EQ(loaded.manifest().version, 1);
  EXPECT_EQ(loaded.state_sha256(), state.digest());
  Targets targets(state);
  restore(loaded, targets.list());
  EXPECT_TRUE(targets.equals(state));
  EXPECT_EQ(print_manifest(loaded.manifest()), base::read_file(real, folder + "/MANIFEST", 1 << 20));

  // In a run that goes on: the parent of the next one, and damage is found.
  SimVfs vfs;
  vfs.mkdir(kRanksRun);
  vfs.mkdir("run/step-3");
  for (const std::string& name : real.list(folder)) {
    const std::string text = base::read_file(real, folder + "/" + name, 1 << 20);
    const auto bytes = std::as_bytes(std::span(text));
    vfs.close(vfs.create("run/step-3/" + name), "");
    vfs.set_contents("run/step-3/" + name, {bytes.begin(), bytes.end()});
  }
  EXPECT_TRUE(save_together(vfs, kRanksRun, state, 2).already_there);
  save_together(vfs, kRanksRun, TestState(4), 2);
  EXPECT_EQ(open(vfs, "run/step-4").manifest().parent->step, 3);
  for (size_t at = 0; at < 2192; at += 7) {
    auto bytes = vfs.contents("run/step-3/shard-000001");
    bytes[at] ^= std::byte{16};
    vfs.set_contents("run/step-3/shard-000001", bytes);
    EXPECT_EQ(thrown_by([&] { open(vfs, "run/step-3").verify(); }).code, base::ExitCode::Storage) << at;
    bytes[at] ^= std::byte{16};
    vfs.set_contents("run/step-3/shard-000001", bytes);
  }
}

}  // namespace
}  // namespace pleat::checkpoint
