// What orders two stages: data and lanes, nothing else.
#include "program/order.h"

#include <gtest/gtest.h>

#include "program/brute_order.h"

namespace pleat::program {
namespace {

using Edges = std::vector<StageId>;

class OrderTest : public ::testing::Test {
 protected:
  ValueId value(const char* name) { return b.value(name, tensor::Dtype::F32, {8, 4}, Owner::Activations); }
  // One stage on a lane of its own unless said otherwise, so that only data can order it.
  void copy(ValueId from, ValueId to, int lane = -1) {
    const int own = lane >= 0 ? lane : b.lane("lane" + std::to_string(count_), "compute");
    b.at({0, -1, count_++}, own);
    b.forward(Op::router_record, {r(from), w(to)});
  }
  void add(ValueId from, ValueId to) {
    b.at({0, -1, count_}, b.lane("lane" + std::to_string(count_), "compute"));
    ++count_;
    b.wgrad(Op::tie_grad, {r(from), u(to)});
  }

  Builder b{"p"};
  int count_ = 0;
};

TEST_F(OrderTest, ReadAfterWrite) {
  const ValueId x = value("x"), y = value("y"), z = value("z");
  copy(x, y);
  copy(y, z);
  EXPECT_EQ(data_edges(b.program())[1], Edges{0});
  const Order order(b.program());
  EXPECT_TRUE(order.before(0, 1));
  EXPECT_FALSE(order.before(1, 0));
  EXPECT_FALSE(order.before(0, 0));
}

TEST_F(OrderTest, WriteAfterReadAndAfterWrite) {
  const ValueId x = value("x"), y = value("y"), z = value("z"), v = value("v");
  copy(x, y);  // 0 writes y
  copy(y, z);  // 1 reads y
  copy(y, v);  // 2 reads y
  copy(x, y);  // 3 overwrites y
  EXPECT_EQ(data_edges(b.program())[3], (Edges{0, 1, 2}));
  const Order order(b.program());
  EXPECT_FALSE(order.before(1, 2)) << "two reads are not ordered";
  EXPECT_TRUE(order.before(1, 3) && order.before(2, 3));
}

TEST_F(OrderTest, UpdatesAreAChain) {
  const ValueId x = value("x"), y = value("y"), sum = value("sum");
  copy(x, sum);
  add(x, sum);
  add(y, sum);
  add(x, sum);
  const auto edges = data_edges(b.program());
  EXPECT_EQ(edges[1], Edges{0});
  EXPECT_EQ(edges[2], Edges{1});
  EXPECT_EQ(edges[3], Edges{2});
  EXPECT_TRUE(Order(b.program()).before(1, 3));
}

TEST_F(OrderTest, ViewsCountByTheirBytes) {
  const ValueId x = value("x"), y = value("y"), z = value("z");
  const ValueId lo = b.rows(y, 0, 4, "[0]"), hi = b.rows(y, 4, 4, "[1]"), mid = b.rows(y, 3, 2, "[m]");
  const ValueId half = b.rows(x, 0, 4, "[0]"), two = b.rows(z, 0, 2, "[0]");
  copy(half, lo);  // 0
  copy(half, hi);  // 1: other bytes
  copy(mid, two);  // 2: a row of each
  copy(y, z);      // 3: all of y, and over what 2 wrote
  copy(half, lo);  // 4
  const auto edges = data_edges(b.program());
  EXPECT_EQ(edges[1], Edges{});
  EXPECT_EQ(edges[2], (Edges{0, 1}));
  EXPECT_EQ(edges[3], (Edges{0, 1, 2}));
  EXPECT_EQ(edges[4], (Edges{0, 2, 3}));
  const Order order(b.program());
  EXPECT_FALSE(order.before(0, 1) || order.before(1, 0));
}

TEST_F(OrderTest, ListPositionIsNoOrderBetweenLanes) {
  const ValueId x = value("x"), y = value("y"), z = value("z"), v = value("v");
  const int one = b.lane("one", "compute"), two = b.lane("two", "compute");
  copy(x, y, one);
  copy(x, z, two);
  copy(x, v, one);
  const Order order(b.program());
  EXPECT_FALSE(order.before(0, 1));
  EXPECT_FALSE(order.before(1, 2));
  EXPECT_TRUE(order.before(0, 2)) << "one lane is a queue";
  EXPECT_EQ(order.position_on_lane(2), 1);
  EXPECT_EQ(order.clock(1, one), -1);
  EXPECT_EQ(order.clock(2, one), 0);
}

TEST_F(OrderTest, OrderGoesThroughOtherLanes) {
  const ValueId x = value("x"), y = value("y"), z = value("z"), v = value("v");
  const int one = b.lane("one", "compute"), two = b.lane("two", "compute"),
            three = b.lane("three", "compute");
  copy(x, v, one);    // 0
  copy(x, y, one);    // 1
  copy(y, z, two);    // 2 waits for 1, so for 0
  copy(z, x, three);  // 3 waits for 2
  const Order order(b.program());
  EXPECT_TRUE(order.before(0, 2));
  EXPECT_TRUE(order.before(0, 3));
}

TEST_F(OrderTest, EmptyValuesOrderNothing) {
  const ValueId x = value("x"), y = value("y");
  const ValueId nothing = b.value("nothing", tensor::Dtype::F32, {0, 4}, Owner::Activations);
  copy(x, nothing);
  copy(nothing, y);
  EXPECT_EQ(data_edges(b.program())[1], Edges{});
}

TEST(OrderBrute, RandomProgramsAgreeWithTheDefinition) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const Program p = random_program(seed, 50);
    const Order order(p);
    const auto brute = brute_order(p);
    for (size_t b = 0; b < p.stages.size(); ++b)
      for (size_t a = 0; a < p.stages.size(); ++a)
        ASSERT_EQ(order.before(static_cast<StageId>(a), static_cast<StageId>(b)), brute[b][a])
            << "seed " << seed << ": " << stage_name(p.stages[a]) << " before " << stage_name(p.stages[b]);
  }
}

}  // namespace
}  // namespace pleat::program
