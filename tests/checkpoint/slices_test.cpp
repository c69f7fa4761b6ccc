// Rectangles of tensors: few of them, the right ones, and the way back.
#include "checkpoint/slices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "checkpoint/checkpoint_support.h"

namespace pleat::checkpoint {
namespace {

// Parts that lie in memory as they lie in the tensor.
std::vector<Part> in_place(std::vector<Part> parts) {
  for (Part& p : parts) p.out_begin = p.tensor_begin;
  return parts;
}

TEST(Slices, CutsAreFew) {
  // Of each of 1000 rows of 96 bytes a part of three blocks, as a rank that holds some columns of q | k | v.
  std::vector<Part> columns;
  for (int64_t row = 0; row < 1000; ++row)
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{8, 16}, {56, 8}, {80, 8}})
      columns.push_back({row * 96 + begin, 0, count});
  const std::vector<Cut> cuts = cut_into_rectangles(in_place(columns), 96);
  ASSERT_EQ(cuts.size(), 3u);
  for (const Cut& cut : cuts) EXPECT_EQ(cut.where.row_end - cut.where.row_begin, 1000);

  // A stretch that begins and ends inside rows.
  const std::vector<Cut> stretch = cut_into_rectangles(in_place({{100, 0, 1000}}), 96);
  ASSERT_EQ(stretch.size(), 3u);
  EXPECT_EQ(stretch[1].where.length(), 9 * 96);
  EXPECT_EQ(stretch[1].copies.size(), 1u);
  EXPECT_EQ(cut_into_rectangles(in_place({{0, 0, 960}}), 96).size(), 1u);
  EXPECT_TRUE(cut_into_rectangles({}, 96).empty());
}

// Every byte of a tensor to one of some owners, in random pieces: the slices cover it, and the walk finds each byte.
TEST(Slices, TheWalkFindsEveryByte) {
  std::mt19937_64 rng(3);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 300; ++round) {
    const int64_t row_bytes = 1 + below(20), rows = 1 + below(12), length = row_bytes * rows;
    const int num_owners = 1 + static_cast<int>(below(4));
    std::vector<std::vector<Part>> parts(static_cast<size_t>(num_owners));
    for (int64_t at = 0; at < length;) {
      const int64_t count = std::min(length - at, 1 + below(rng() % 3 ? 6 : 40));
      parts[static_cast<size_t>(below(num_owners))].push_back({at, at, count});
      at += count;
    }
    Manifest manifest;
    manifest.tensors = {{"t", tensor::Dtype::U8, {length}, 0, length, row_bytes, {}}};
    std::vector<int64_t> expected(static_cast<size_t>(length), -1);  // place in the stream
    int64_t stored = 0;
    for (const std::vector<Part>& owned : parts)
      for (const Cut& cut : cut_into_rectangles(owned, row_bytes)) {
        manifest.slices.push_back({0, cut.where});
        for (const Copy& c : cut.copies)
          for (int64_t i = 0; i < c.count; ++i) expected[static_cast<size_t>(c.begin + i)] = stored++;
      }
    complete(manifest, "M");
    ASSERT_EQ(stored, length);
    check_slices(manifest, "M");
    const SliceIndex index(manifest);
    const std::string path = "M";
    TensorWalk walk(manifest, index, 0, path);
    for (int64_t at = 0; at < length;) {
      const TensorWalk::Piece piece = walk.at(at);
      ASSERT_GT(piece.count, 0);
      for (int64_t i = 0; i < piece.count; ++i, ++at)
        ASSERT_EQ(expected[static_cast<size_t>(at)], piece.stored + i) << "round " << round << " byte " << at;
    }
    for (int i = 0; i < 20; ++i) {  // back and forth
      const int64_t at = below(length);
      ASSERT_EQ(walk.at(at).stored, expected[static_cast<size_t>(at)]);
    }
  }
}

// What a reader keeps follows from it.
TEST(Slices, OneRowIsReadSliceAfterSliceHoweverManyOwnIt) {
  const auto read_in_turn = [](int64_t num_rows) {
    Manifest manifest;
    manifest.tensors = {{"t", tensor::Dtype::U8, {num_rows * 128}, 0, num_rows * 128, 128, {}}};
    for (int64_t owner = 0; owner < 128; ++owner)
      manifest.slices.push_back({0, {0, num_rows, owner, owner + 1}});
    complete(manifest, "M");
    const SliceIndex index(manifest);
    const std::string path = "M";
    TensorWalk walk(manifest, index, 0, path);
    walk.at(0);
    return walk.num_read_in_turn();
  };
  EXPECT_EQ(read_in_turn(1), 1u);
  EXPECT_EQ(read_in_turn(2), 128u);
}

TEST(Slices, GapsAndOverlapsAreNamed) {
  const auto refusal = [](std::vector<Rectangle> rectangles) {
    Manifest manifest;
    manifest.tensors = {{"w", tensor::Dtype::U8, {40}, 0, 40, 10, {}}};
    for (const Rectangle& r : rectangles) manifest.slices.push_back({0, r});
    complete(manifest, "M");
    int64_t start = 0;
    for (size_t i = 0; i < rectangles.size(); ++i) {
      manifest.shards.push_back({fmt::format("shard-{}", i), start, rectangles[i].length(), 0, {}});
      start += rectangles[i].length();
    }
    return thrown_by([&] { check_slices(manifest, "M"); }).message;
  };
  EXPECT_EQ(refusal({{0, 4, 0, 6}, {0, 4, 5, 10}}),
            "M: bytes 5 to 6 of tensor 'w' are there twice, in 'shard-0' and in 'shard-1'");
  EXPECT_EQ(refusal({{0, 4, 0, 5}, {0, 4, 5, 10}, {2, 3, 4, 8}}),
            "M: bytes 25 to 28 of tensor 'w' are there twice, in 'shard-1' and in 'shard-2'");
  EXPECT_EQ(refusal({{0, 4, 0, 10}, {1, 2, 0, 10}}),
            "M: bytes 10 to 20 of tensor 'w' are there twice, in 'shard-0' and in 'shard-1'");
  EXPECT_EQ(refusal({{0, 4, 0, 5}, {0, 4, 6, 10}}), "M: bytes 5 to 6 of tensor 'w' are in no shard");
  EXPECT_EQ(refusal({{0, 4, 0, 5}, {0, 3, 5, 10}}), "M: bytes 35 to 40 of tensor 'w' are in no shard");
  EXPECT_EQ(refusal({{1, 4, 0, 10}}), "M: bytes 0 to 10 of tensor 'w' are in no shard");
  EXPECT_EQ(refusal({{0, 1, 0, 10}, {2, 4, 0, 10}}), "M: bytes 10 to 20 of tensor 'w' are in no shard");
  EXPECT_EQ(refusal({{0, 3, 0, 10}}), "M: bytes 30 to 40 of tensor 'w' are in no shard");
  EXPECT_EQ(refusal({}), "M: bytes 0 to 10 of tensor 'w' are in no shard");
  EXPECT_NE(refusal({{0, 5, 0, 10}}).find("tensor 'w' has 4 rows of 10 bytes"), std::string::npos);
  EXPECT_NE(refusal({{0, 4, 0, 11}}).find("tensor 'w' has 4 rows of 10 bytes"), std::string::npos);
}

}  // namespace
}  // namespace pleat::checkpoint
