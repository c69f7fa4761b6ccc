// A checkpoint into a run that keeps more or fewer bits of its weights: numbers are joined from what is there and taken apart
// as the run has them.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "base/posix_vfs.h"
#include "base/rng.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "resume/resume_support.h"
#include "support/refusal.h"
#include "tensor/short_master.h"
#include "train/restore_state.h"

namespace pleat::train {
namespace {

using tensor::Dtype;

struct Held {
  std::string name;
  Dtype dtype;
  std::vector<std::byte> bytes;
};

constexpr int64_t kSize = 500;

Held held(const std::string& name, Dtype dtype) {
  return {name, dtype, std::vector<std::byte>(static_cast<size_t>(kSize * tensor::size_of(dtype)))};
}

class MasterFormats : public ::testing::Test {
 protected:
  checkpoint::Loaded saved(const std::vector<Held>& state) {
    checkpoint::StateView view;
    for (const Held& h : state) view.tensors.push_back({h.name, h.dtype, {kSize}, h.bytes});
    const std::string directory = folder_.at(std::to_string(num_saved_++));
    std::filesystem::create_directories(directory);
    return checkpoint::open(vfs_, checkpoint::save(vfs_, directory, view, {}).path);
  }
  static void restore(const checkpoint::Loaded& loaded, std::vector<Held>& state) {
    std::vector<checkpoint::Target> targets;
    for (Held& h : state) targets.push_back({h.name, h.dtype, {kSize}, h.bytes});
    restore_state(loaded, targets);
  }
  static float number(const std::vector<Held>& state, int64_t i) {
    const auto at = [&](size_t which, auto kind) {
      std::memcpy(&kind, state[which].bytes.data() + size_t(i) * sizeof kind, sizeof kind);
      return kind;
    };
    if (state[0].dtype == Dtype::F32) return at(0, float{});
    if (state.size() == 1) return tensor::join(at(0, uint16_t{}), 0);
    if (state[1].dtype == Dtype::U8) return tensor::join_short(at(0, uint16_t{}), at(1, int8_t{}));
    return tensor::join(at(0, uint16_t{}), at(1, int16_t{}));
  }

  testing::TemporaryFolder folder_;
  base::PosixVfs vfs_;
  int num_saved_ = 0;
};

TEST_F(MasterFormats, EveryPairKeepsWhatBothHold) {
  Held wide = held("w", Dtype::F32);
  const base::RandomStream random(3, base::RandomUse::Test, 0, 0);
  for (int64_t i = 0; i < kSize; ++i) {
    const float x = static_cast<float>(random.normal(static_cast<uint64_t>(i)));
    std::memcpy(wide.bytes.data() + size_t(i) * sizeof x, &x, sizeof x);
  }
  const auto formats = [] {
    return std::vector<std::vector<Held>>{{held("w", Dtype::F32)},
                                          {held("w", Dtype::BF16), held("w.rest", Dtype::I16)},
                                          {held("w", Dtype::BF16), held("w.rest", Dtype::U8)},
                                          {held("w", Dtype::BF16)}};
  };
  constexpr int kBits[] = {24, 24, 16, 8};  // of a number's fraction, the first one too
  for (size_t from = 0; from < 4; ++from) {
    std::vector<Held> first = formats()[from];
    restore(saved({wide}), first);
    const checkpoint::Loaded loaded = saved(first);
    for (size_t to = 0; to < 4; ++to) {
      std::vector<Held> second = formats()[to];
      restore(loaded, second);
      for (int64_t i = 0; i < kSize; ++i) {
        const float was = number(first, i), is = number(second, i);
        if (kBits[to] >= kBits[from]) {
          ASSERT_EQ(is, was) << from << " to " << to;
        } else {
          ASSERT_LE(std::abs(is - was), std::ldexp(std::abs(was), -kBits[to])) << from << " to " << to;
        }
      }
    }
  }
}

TEST_F(MasterFormats, ARestOfAnotherTypeIsRefused) {
  const checkpoint::Loaded loaded = saved({held("w", Dtype::BF16), held("w.rest", Dtype::F32)});
  std::vector<Held> run = {held("w", Dtype::F32)};
  std::vector<checkpoint::Target> targets = {{"w", Dtype::F32, {kSize}, run[0].bytes}};
  EXPECT_NE(pleat::testing::refusal([&] { restore_state(loaded, targets); }), "");
  const std::vector<checkpoint::Expected> weights = {{"w", Dtype::F32, {kSize}}};
  EXPECT_NE(pleat::testing::refusal([&] { (void)PartRestorer::of_weights(loaded, weights); }), "");
}

TEST_F(MasterFormats, CodesWithoutTheirScalesAreRefused) {
  const checkpoint::Loaded loaded = saved({held("w.moment1", Dtype::U8)});
  std::vector<Held> run = {held("w.moment1", Dtype::F32)};
  std::vector<checkpoint::Target> targets = {{"w.moment1", Dtype::F32, {kSize}, run[0].bytes}};
  EXPECT_NE(pleat::testing::refusal([&] { restore_state(loaded, targets); }).find("w.moment1.scale"),
            std::string::npos);
}

}  // namespace
}  // namespace pleat::train
