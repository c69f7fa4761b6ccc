// Times of exchanges against their closed forms (docs/simulation.md), and what must hold of any machine.
#include "cost/exchange_time.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cost/machine_file.h"

namespace pleat::cost {
namespace {

// Round numbers: 100 GB/s and 1 us inside a node, 10 GB/s a rank and 5 us between nodes.
Machine plain() {
  Machine m;
  m.node.ranks = 4;
  m.node.link = {100, 1, 0};
  m.network.nics = 4;
  m.network.nic = {10, 5, 0};
  return m;
}
constexpr double kBytes = 8e6;

TEST(ExchangeTime, RingInsideANode) {
  const ExchangeTime t = ring_time(plain(), {4, 1, 4}, kBytes);
  EXPECT_DOUBLE_EQ(t.latency_ns, 3 * 1000.0);
  EXPECT_DOUBLE_EQ(t.link_ns, kBytes * 3 / 4 / 100);
  EXPECT_EQ(t.network_ns, 0);
  EXPECT_EQ(ring_time(plain(), {1, 1, 1}, kBytes).total_ns(), 0);
}

TEST(ExchangeTime, RingBetweenNodesUsesEveryAdapterOfItsRanks) {
  // Two nodes, four ranks on each: as many rings as ranks of a node.
  const ExchangeTime t = ring_time(plain(), {8, 2, 4}, kBytes);
  EXPECT_DOUBLE_EQ(t.latency_ns, 6 * 1000.0 + 1 * 5000.0);
  EXPECT_DOUBLE_EQ(t.network_ns, kBytes * 7 / 8 / (4 * 10));
  EXPECT_DOUBLE_EQ(t.link_ns, kBytes * 7 / 8 / 100);
  // One rank on each of eight nodes: one adapter, no link of a node.
  const ExchangeTime alone = ring_time(plain(), {8, 8, 1}, kBytes);
  EXPECT_DOUBLE_EQ(alone.network_ns, kBytes * 7 / 8 / 10);
  EXPECT_EQ(alone.link_ns, 0);
  EXPECT_DOUBLE_EQ(alone.latency_ns, 7 * 5000.0);
}

TEST(ExchangeTime, AllReduceIsTwoRingsOrATree) {
  const ExchangeTime large = all_reduce_time(plain(), {64, 64, 1}, 1e9);
  EXPECT_DOUBLE_EQ(large.network_ns, 2 * 1e9 * 63 / 64 / 10) << "many bytes: rings move fewer";
  const ExchangeTime small = all_reduce_time(plain(), {64, 64, 1}, 1e3);
  EXPECT_DOUBLE_EQ(small.latency_ns, 2 * 6 * 5000.0) << "few bytes: a tree has fewer hops";
  EXPECT_DOUBLE_EQ(all_reduce_time(plain(), {4, 1, 4}, kBytes).total_ns(),
                   2 * ring_time(plain(), {4, 1, 4}, kBytes).total_ns());
}

TEST(ExchangeTime, AllToAllSplitsByWhereTheOthersAre) {
  const ExchangeTime t = all_to_all_time(plain(), {8, 2, 4}, kBytes);
  EXPECT_DOUBLE_EQ(t.link_ns, 3 * kBytes / 8 / 100);
  EXPECT_DOUBLE_EQ(t.network_ns, 4 * kBytes / 8 / 10);
  EXPECT_DOUBLE_EQ(t.latency_ns, 5000.0);
  Machine rails = plain();
  rails.network.rails = true;
  // Three quarters of what leaves the node leave it through another rank's adapter.
  EXPECT_DOUBLE_EQ(all_to_all_time(rails, {8, 2, 4}, kBytes).link_ns, (3 + 4 * 3.0 / 4) * kBytes / 8 / 100);
}

TEST(ExchangeTime, SmallMessagesReachLessOfALink) {
  Machine m = plain();
  m.node.link.half_kib = 100;
  const double half = 100 * 1024;
  EXPECT_DOUBLE_EQ(message_time(m, false, half).link_ns, 2 * half / 100) << "half of the rate";
  EXPECT_DOUBLE_EQ(ring_time(m, {4, 1, 4}, kBytes).link_ns, (3 * kBytes / 4 + half) / 100) << "once";
  EXPECT_DOUBLE_EQ(all_to_all_time(m, {4, 1, 4}, kBytes).link_ns, 3 * (kBytes / 4 + half) / 100);
  m.network.nics = 2, m.network.nic.half_kib = 100;  // two ranks share an adapter
  EXPECT_DOUBLE_EQ(message_time(m, true, kBytes).network_ns, kBytes / 5 + half / 10);
  m = plain();
  EXPECT_DOUBLE_EQ(message_time(m, true, kBytes).network_ns, kBytes / 10);
}

// A CPU's node has as many ranks as are asked for: these share its cores' rates by threads, and its adapters.
TEST(ExchangeTime, RanksOfACpuShareItsAdaptersAndHaveTheirThreads) {
  const Machine cpu = find_machine("cpu"), rank = machine_of_rank(cpu, 2, 3);
  EXPECT_DOUBLE_EQ(rank.network_gb_s(), cpu.network.nic.gb_s / 2);
  EXPECT_DOUBLE_EQ(message_time(rank, true, 1e9).network_ns,
                   1e9 / (cpu.network.nic.gb_s / 2) + cpu.network.nic.half_kib * 1024 / cpu.network.nic.gb_s);
  EXPECT_DOUBLE_EQ(rank.processor.f32_tflops, 3 * cpu.processor.f32_tflops);
  EXPECT_DOUBLE_EQ(rank.processor.memory_gb_s, 3 * cpu.processor.memory_gb_s);
  const Machine h100 = find_machine("h100");
  EXPECT_EQ(machine_of_rank(h100, 2, 3).network_gb_s(), h100.network_gb_s()) << "a GPU has its own adapter";
}

TEST(ExchangeTime, FasterLinksNeverTakeLonger) {
  const auto all = [](const Machine& m, const GroupReach& r, double bytes) {
    return std::vector<double>{ring_time(m, r, bytes).total_ns(), all_reduce_time(m, r, bytes).total_ns(),
                               all_to_all_time(m, r, bytes).total_ns(),
                               message_time(m, r.nodes > 1, bytes).total_ns()};
  };
  for (const char* name : {"h100", "a100", "gb200-nvl72"})
    for (const GroupReach& r :
         {GroupReach{8, 1, 8}, {16, 2, 8}, {16, 16, 1}, {64, 8, 8}, {12, 2, 4}, {1024, 128, 8}})
      for (const double bytes : {1e3, 1e5, 1e7, 1e9}) {
        const Machine m = find_machine(name);
        for (int what = 0; what < 4; ++what) {
          Machine better = m;
          if (what == 0) better.node.link.gb_s *= 2;
          if (what == 1) better.network.nic.gb_s *= 2;
          if (what == 2) better.node.link.latency_us /= 2, better.network.nic.latency_us /= 2;
          if (what == 3) better.node.link.half_kib /= 2, better.network.nic.half_kib /= 2;
          const auto slow = all(m, r, bytes), fast = all(better, r, bytes);
          for (size_t i = 0; i < slow.size(); ++i)
            EXPECT_LE(fast[i], slow[i]) << name << " " << what << " " << i;
        }
      }
}

}  // namespace
}  // namespace pleat::cost
