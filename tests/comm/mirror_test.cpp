// One rank among its mirror images: every call ends at once with what all would say if they said the same.
#include "comm/mirror/mirror_world.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "support/refusal.h"
#include "tensor/bf16.h"

namespace pleat {
namespace {

using comm::Reduce;

class Mirror : public ::testing::Test {
 protected:
  std::unique_ptr<comm::Endpoint> endpoint = comm::mirror_endpoint(6, 2);
  // Rank 2 of the world is member 1 of three.
  const std::vector<int> ranks = {0, 2, 4};
  std::unique_ptr<comm::Communicator> group = endpoint->group("three", ranks);
};

template <class T>
std::span<const std::byte> seen(const std::vector<T>& v) {
  return std::as_bytes(std::span(v));
}
template <class T>
std::span<std::byte> written(std::vector<T>& v) {
  return std::as_writable_bytes(std::span(v));
}

TEST_F(Mirror, IsTheRankItWasAskedFor) {
  EXPECT_EQ(endpoint->size(), 6);
  EXPECT_EQ(endpoint->rank(), 2);
  EXPECT_EQ(group->size(), 3);
  EXPECT_EQ(group->rank(), 1);
  EXPECT_EQ(group->meeting(), program::Meeting::OnHost);
  EXPECT_NE(testing::refusal([] { comm::mirror_endpoint(2, 2); }).find("rank 2"), std::string::npos);
  const std::vector<int> others = {0, 1}, outside = {2, 9};
  EXPECT_NE(testing::refusal([&] { endpoint->group("x", others); }).find("rank 2"), std::string::npos);
  EXPECT_NE(testing::refusal([&] { endpoint->group("x", outside); }).find("rank 9"), std::string::npos);
  EXPECT_NE(testing::refusal([&] { endpoint->group("x", ranks, comm::Buffers::Device); }).find("GPU"),
            std::string::npos);
  EXPECT_FALSE(endpoint->why_no_windows(ranks, comm::Buffers::Host).empty());
}

TEST_F(Mirror, EverybodyGivesWhatIGive) {
  const std::vector<int32_t> in = {7, 8};
  std::vector<int32_t> out(6);
  group->all_gather("g", seen(in), written(out));
  EXPECT_EQ(out, (std::vector<int32_t>{7, 8, 7, 8, 7, 8}));
  // Parts of other lengths repeat it or take its beginning; my own may lie where it belongs.
  std::vector<int32_t> all = {0, 0, 0, 5, 6, 0};
  const std::vector<int64_t> bytes = {12, 8, 4};
  group->all_gather_v("g", seen(all).subspan(12, 8), written(all), bytes);
  EXPECT_EQ(all, (std::vector<int32_t>{5, 6, 5, 5, 6, 5}));
  std::vector<int32_t> shifted(2);
  group->shift("s", seen(in), written(shifted));
  EXPECT_EQ(shifted, in);
  std::vector<int32_t> told = {3};
  group->broadcast("b", written(told), 0);
  EXPECT_EQ(told[0], 3);
  group->barrier("b");
}

TEST_F(Mirror, SumsAreOfAsManyAsThereAreRanks) {
  std::vector<float> x = {1.5f, -2.0f};
  group->all_reduce("r", std::span(x), Reduce::Sum);
  EXPECT_EQ(x, (std::vector<float>{4.5f, -6.0f}));
  group->all_reduce("r", std::span(x), Reduce::Max);
  group->all_reduce("r", std::span(x), Reduce::Min);
  EXPECT_EQ(x, (std::vector<float>{4.5f, -6.0f}));
  const std::vector<int64_t> in = {1, 2, 3};
  std::vector<int64_t> out(1);
  group->reduce_scatter("r", seen(in), written(out), tensor::Dtype::I64, Reduce::Sum);
  EXPECT_EQ(out[0], 6);
  const std::vector<int64_t> counts = {2, 1, 0};
  group->reduce_scatter_v("r", seen(in), written(out), counts, tensor::Dtype::I64, Reduce::Sum);
  EXPECT_EQ(out[0], 9);
}

// What an exchange of rows does: counts first, then rows as the counts say.
TEST_F(Mirror, CountsAndRowsFit) {
  const std::vector<int64_t> mine = {3, 2, 1};  // rows for each rank
  std::vector<int64_t> table(9);
  group->all_gather("counts", seen(mine), written(table));
  const std::vector<int16_t> rows = {10, 11, 12, 20, 21, 30};
  std::vector<int64_t> send(3), send_at(3), receive(3), receive_at(3);
  int64_t sent = 0, arrived = 0;
  for (size_t r = 0; r < 3; ++r) {
    send[r] = 2 * table[3 + r], send_at[r] = sent, sent += send[r];
    receive[r] = 2 * table[3 * r + 1], receive_at[r] = arrived, arrived += receive[r];
  }
  std::vector<int16_t> got(static_cast<size_t>(arrived / 2));
  group->all_to_all_v("rows", seen(rows), {send, send_at}, written(got), {receive, receive_at});
  EXPECT_EQ(got, (std::vector<int16_t>{20, 21, 20, 21, 20, 21}));
  // And back: as many as were sent to each.
  std::vector<int16_t> back(6);
  group->all_to_all_v("back", seen(got), {receive, receive_at}, written(back), {send, send_at});
  EXPECT_EQ(back, (std::vector<int16_t>{20, 21, 20, 20, 21, 20}));
  // Nothing for myself: nothing to repeat.
  const std::vector<int64_t> none = {0, 0, 0}, two = {2, 2, 2}, at = {0, 2, 4};
  group->all_to_all_v("none", {}, {none, none}, written(back).first(6), {two, at});
  EXPECT_EQ(back[0], 0);
}

TEST_F(Mirror, MessagesAreFiniteNumbersOfAnyType) {
  group->send("x", 0, 1, seen(std::vector<float>{1, 2}));
  const auto in_range = [](double x, double least) { return std::abs(x) >= least && std::abs(x) < 1.5; };
  std::vector<float> f32(101);
  std::vector<double> f64(101);
  std::vector<uint16_t> bf16(101);
  for (int twice = 0; twice < 2; ++twice) {
    group->receive("x", 0, 1, written(f32));
    group->receive("x", 2, 1, written(f64));
    group->receive("x", 0, 3, written(bf16));
    double sum = 0;
    for (const float x : f32) EXPECT_TRUE(in_range(x, 1)) << x;
    for (const double x : f64) EXPECT_TRUE(in_range(x, 0.007)) << x;
    for (const uint16_t x : bf16)
      EXPECT_TRUE(in_range(tensor::widened(x), 1)) << x, sum += tensor::widened(x);
    EXPECT_LT(std::abs(sum), 60) << "signs differ";
    std::fill(f32.begin(), f32.end(), NAN);  // whoever has the memory between two steps
  }
  std::vector<int32_t> in = {1, 2}, out(2);
  group->send_receive("x", 0, seen(in), 2, written(out), 4);
  EXPECT_EQ(out, in);
}

TEST_F(Mirror, OutlivesItsEndpoint) {
  endpoint.reset();
  std::vector<float> x = {1};
  group->all_reduce("r", std::span(x), Reduce::Sum);
  EXPECT_EQ(x[0], 3);
}

}  // namespace
}  // namespace pleat
