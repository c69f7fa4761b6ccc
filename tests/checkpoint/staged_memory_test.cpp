// Bytes that the host reaches through small buffers only: read, written, saved and restored as if they lay in its memory,
// with nothing of the state's size beside them.
#include "checkpoint/staged_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "base/posix_vfs.h"
#include "checkpoint/checkpoint_support.h"
#include "checkpoint/ranks_support.h"
#include "support/files.h"
#include "support/late_carrier.h"

namespace pleat::checkpoint {
namespace {

using testing::LateCarrier;

std::vector<std::byte> random_bytes(size_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::byte> out(count);
  for (std::byte& b : out) b = static_cast<std::byte>(rng());
  return out;
}

struct Far {
  Far(size_t count, int64_t buffer_bytes) : bytes(random_bytes(count, 7)), carrier(bytes, buffer_bytes) {}
  std::vector<std::byte> bytes;
  LateCarrier carrier;
  StagedMemory memory{carrier};
};

TEST(StagedMemory, ReadsWhatIsThere) {
  for (const int64_t buffer : {256, 512, 4096, 1 << 20}) {
    Far far(10007, buffer);
    const int64_t begin = 3, size = 10001;
    const ConstBytes all(far.memory, begin, size);
    EXPECT_TRUE(std::equal(far.bytes.begin() + begin, far.bytes.begin() + begin + size, all.copy().begin()));
    std::mt19937 rng(3);
    // Several readers that come in turn: each finds its own bytes, whatever the others left in the buffers.
    ConstBytes::Reader readers[] = {all.reader(), all.reader(), all.reader(100, 9000)};
    for (int i = 0; i < 2000; ++i) {
      const size_t which = rng() % 3;
      const int64_t low = which == 2 ? 100 : 0, high = which == 2 ? 9000 : size;
      const int64_t from = low + static_cast<int64_t>(rng() % static_cast<uint64_t>(high - low));
      const int64_t to = from + 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(high - from));
      const std::span<const std::byte> there = readers[which].at(from, to);
      ASSERT_GE(there.size(), 1u);
      ASSERT_LE(static_cast<int64_t>(there.size()), std::min(to - from, buffer));
      ASSERT_TRUE(std::equal(there.begin(), there.end(), far.bytes.begin() + begin + from))
          << from << " " << to;
    }
  }
}

TEST(StagedMemory, TheNextPieceIsOnItsWayAndNoByteComesTwice) {
  constexpr int64_t kBuffer = 1024, kSize = 10 * kBuffer + 100;
  Far far(kSize, kBuffer);
  ConstBytes::Reader reader = ConstBytes(far.memory, 0, kSize).reader();
  for (int64_t at = 0; at < kSize; at += 50) {  // in steps smaller than a piece
    const auto there = reader.at(at, kSize);
    ASSERT_EQ(there[0], far.bytes[static_cast<size_t>(at)]);
    if (at / kBuffer < kSize / kBuffer) {
      EXPECT_TRUE(far.carrier.is_copying(0) || far.carrier.is_copying(1)) << at;
    }
  }
  EXPECT_EQ(far.carrier.fetched, kSize);
}

// Small pieces that lie near each other come together.
TEST(StagedMemory, ManySmallPiecesTakeFewCopies) {
  Far far(1 << 16, 1 << 14);
  ConstBytes::Reader reader = ConstBytes(far.memory, 0, 1 << 16).reader();
  for (int64_t at = 0; at < 1 << 16; at += 32) ASSERT_EQ(reader.at(at, at + 16).size(), 16u);
  EXPECT_EQ(far.carrier.fetched, 1 << 16);
}

TEST(StagedMemory, WritesInStretchesOfWholeUnits) {
  for (const int64_t buffer : {256, 512, 4096, 1 << 20}) {
    Far far(10007, buffer);
    const std::vector<std::byte> before = far.bytes, numbers = random_bytes(10007, 8);
    const Bytes all(far.memory, 3, 10001);
    int64_t next = 40;
    all.write(40, 9000, [&](int64_t begin, std::span<std::byte> room) {
      EXPECT_EQ(begin, next);
      EXPECT_EQ((begin - 40) % Memory::kUnit, 0);
      next += static_cast<int64_t>(room.size());
      std::copy_n(numbers.begin() + begin, room.size(), room.begin());
    });
    EXPECT_EQ(next, 9000);
    EXPECT_EQ(far.carrier.sent, 9000 - 40);
    for (int64_t i = 0; i < 10007; ++i) {
      const bool inside = i >= 43 && i < 9003;
      ASSERT_EQ(far.bytes[size_t(i)], inside ? numbers[size_t(i - 3)] : before[size_t(i)]) << i;
    }
    // What was read before is not what is there now.
    EXPECT_TRUE(std::equal(numbers.begin() + 40, numbers.begin() + 9000, all.copy().begin() + 40));
    all.zero();
    EXPECT_EQ(all.copy(), std::vector<std::byte>(10001));
    EXPECT_EQ(far.bytes[2], before[2]);
    EXPECT_EQ(far.bytes[10004], before[10004]);
  }
}

TEST(StagedMemory, WhatFailsHalfWayLeavesItUsable) {
  Far far(5000, 256);
  const Bytes all(far.memory, 0, 5000);
  const std::vector<std::byte> before = far.bytes;
  EXPECT_THROW(all.write(0, 5000,
                         [&](int64_t begin, std::span<std::byte> room) {
                           if (begin > 1000) throw std::runtime_error("enough");
                           std::fill(room.begin(), room.end(), std::byte{1});
                         }),
               std::runtime_error);
  all.write(0, before);
  EXPECT_EQ(all.copy(), before);
}

TEST(StagedMemoryDeathTest, NobodyElseUsesItWhileItIsWritten) {
  Far far(5000, 256);
  const Bytes all(far.memory, 0, 5000);
  EXPECT_DEATH(all.write(0, 5000, [&](int64_t, std::span<std::byte>) { all.copy(); }), "being written");
  EXPECT_DEATH(all.host(), "does not reach");
}

// All tensors of a state in one memory behind small buffers.
class FarState {
 public:
  FarState(const TestState& state, int64_t buffer_bytes) : view_(state.view()) {
    int64_t size = 5;
    for (const TestState::Tensor& t : state.tensors) {
      offsets_.push_back(size);
      size += static_cast<int64_t>(t.bytes.size()) + 3;
    }
    bytes_.assign(static_cast<size_t>(size), std::byte{0xC3});
    carrier_ = std::make_unique<LateCarrier>(bytes_, buffer_bytes);
    memory_ = std::make_unique<StagedMemory>(*carrier_);
    for (size_t i = 0; i < state.tensors.size(); ++i) {
      const std::vector<std::byte>& from = state.tensors[i].bytes;
      std::copy(from.begin(), from.end(), bytes_.begin() + offsets_[i]);
      view_.tensors[i].bytes = at(i, static_cast<int64_t>(from.size()));
    }
  }
  const StateView& view() const { return view_; }
  std::vector<Target> targets() {
    std::vector<Target> out;
    for (size_t i = 0; i < offsets_.size(); ++i) {
      const TensorRef& t = view_.tensors[i];
      out.push_back({t.name, t.dtype, t.shape, at(i, t.bytes.size())});
    }
    return out;
  }
  bool equals(const TestState& state) const {
    for (size_t i = 0; i < offsets_.size(); ++i)
      if (view_.tensors[i].bytes.copy() != state.tensors[i].bytes) return false;
    return true;
  }

 private:
  Bytes at(size_t i, int64_t size) { return {*memory_, offsets_[i], size}; }

  StateView view_;
  std::vector<int64_t> offsets_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<LateCarrier> carrier_;
  std::unique_ptr<StagedMemory> memory_;
};

TEST(StagedMemory, ACheckpointIsTheSameFilesWhereverTheStateLies) {
  const TestState state(3), other(4);
  for (const int64_t buffer : {256, 512, 1 << 16}) {
    base::SimVfs near, far;
    FarState staged(state, buffer);
    const SaveResult want = save(near, "run", state.view(), small_options());
    const SaveResult got = save(far, "run", staged.view(), small_options());
    EXPECT_EQ(got.state_sha256, want.state_sha256);
    EXPECT_EQ(got.manifest_sha256, want.manifest_sha256);
    EXPECT_EQ(state_sha256(staged.view()), state.digest());
    ASSERT_EQ(near.list("run/step-3"), far.list("run/step-3"));
    for (const std::string& name : near.list("run/step-3"))
      EXPECT_EQ(base::read_file(near, "run/step-3/" + name, 1 << 20),
                base::read_file(far, "run/step-3/" + name, 1 << 20))
          << name;
    // The same state again is there already; another one is not it.
    EXPECT_TRUE(save(far, "run", staged.view(), small_options()).already_there);
    FarState restored(other, buffer);
    restore(open(near, "run/step-3"), restored.targets());
    EXPECT_TRUE(restored.equals(state));
  }
}

TEST(StagedMemory, SeveralRanksWriteTheirSharesFromIt) {
  const TestState state(3);
  base::SimVfs near, far;
  const SaveResult want = save_together(near, "run", state, 3, small_options());
  const SplitState split(state, 3);
  std::vector<Share> shares;
  std::vector<std::unique_ptr<LateCarrier>> carriers;
  std::vector<std::unique_ptr<StagedMemory>> memories;
  std::vector<std::unique_ptr<std::vector<std::byte>>> bytes;
  for (int r = 0; r < 3; ++r) {
    shares.push_back(split.share(r));
    for (ShareTensor& t : shares.back().tensors) {
      const int64_t size = t.bytes.size();
      bytes.push_back(std::make_unique<std::vector<std::byte>>(t.bytes.copy()));
      carriers.push_back(std::make_unique<LateCarrier>(*bytes.back(), 256));
      memories.push_back(std::make_unique<StagedMemory>(*carriers.back()));
      t.bytes = {*memories.back(), 0, size};
    }
  }
  std::vector<SaveResult> results(3);
  for (const std::exception_ptr& error : run_ranks(3, [&](Peers& peers) {
         const auto rank = static_cast<size_t>(peers.rank());
         results[rank] = save(far, "run", shares[rank], small_options(), peers);
       }))
    if (error) std::rethrow_exception(error);
  EXPECT_EQ(results[0].state_sha256, want.state_sha256);
  EXPECT_EQ(results[0].manifest_sha256, want.manifest_sha256);
}

// Bytes that nobody keeps: what lies at a place follows from it. Says how much memory the process has while they are
// carried.
class MadeUpCarrier final : public Carrier {
 public:
  explicit MadeUpCarrier(int64_t buffer_bytes) {
    for (auto& buffer : buffers_) buffer.resize(static_cast<size_t>(buffer_bytes));
  }
  std::span<std::byte> buffer(int index) override { return buffers_[index]; }
  void fetch(int b, int64_t begin, int64_t count) override {
    look();
    for (int64_t i = 0; i < count; ++i) buffers_[b][static_cast<size_t>(i)] = at(begin + i);
  }
  void send(int b, int64_t begin, int64_t count) override {
    look();
    for (int64_t i = 0; i < count; ++i) wrong += buffers_[b][static_cast<size_t>(i)] != at(begin + i);
    sent += count;
  }
  void wait(int) override {}
  void zero(int64_t, int64_t) override {}

  int64_t most = 0, wrong = 0, sent = 0;

 private:
  static std::byte at(int64_t place) {
    return static_cast<std::byte>((static_cast<uint64_t>(place) * 0x9E3779B97F4A7C15ull) >> 56);
  }
  void look() {
    std::ifstream in("/proc/self/statm");
    int64_t pages = 0, resident = 0, shared = 0;
    in >> pages >> resident >> shared;
    most = std::max(most, (resident - shared) * 4096);
  }
  std::vector<std::byte> buffers_[kBuffers];
};

TEST(StagedMemory, MemoryOfTheProcessDoesNotGrowWithTheState) {
  testing::TemporaryFolder folder;
  base::PosixVfs vfs;
  constexpr int64_t kMiB = int64_t{1} << 20, kTensor = 2 * kMiB;
  std::map<int64_t, int64_t> most;
  for (const int64_t depth : {4, 40}) {
    MadeUpCarrier carrier(kMiB);
    StagedMemory memory(carrier);
    StateView view;
    view.step = depth;
    std::vector<Target> targets;
    for (int64_t i = 0; i < depth; ++i) {
      const std::string name = fmt::format("layers.{}.weight", i);
      view.tensors.push_back({name, tensor::Dtype::U8, {kTensor}, {memory, i * kTensor, kTensor}});
      targets.push_back({name, tensor::Dtype::U8, {kTensor}, {memory, i * kTensor, kTensor}});
    }
    const std::string path = folder.at(fmt::format("depth{}", depth));
    std::filesystem::create_directories(path);
    const SaveResult saved = save(vfs, path, view, {});
    restore(open(vfs, saved.path), targets);
    EXPECT_EQ(carrier.sent, depth * kTensor);
    EXPECT_EQ(carrier.wrong, 0);
    most[depth] = carrier.most;
    std::filesystem::remove_all(path);
  }
  ASSERT_GT(most[4], 0);
#ifndef PLEAT_SANITIZED  // its own memory grows
  EXPECT_LT(most[40] - most[4], 8 * kMiB) << "of 72 MiB more state";
#endif
}

}  // namespace
}  // namespace pleat::checkpoint
