// Enqueued calls over a device that does them when the test says so.
#include "comm/enqueued.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/comm_support.h"
#include "comm/watchdog.h"

namespace pleat {
namespace {

using comm::FlightEntry;
using comm::FlightState;

class PretendedGroup final : public comm::EnqueuedCommunicator {
 public:
  PretendedGroup(comm::RankFlight& flight, int size)
      : EnqueuedCommunicator("dp", testing::all_of(size), 0, flight) {}
  uint64_t done = 0;
  bool in_capture = false, refuses = false;
  std::string broken;

 private:
  void execute(const comm::Call&) override {
    if (refuses) base::fail_with(base::ExitCode::Retry, "no stream");
  }
  uint64_t num_done() const override { return done; }
  bool capturing() const override { return in_capture; }
  std::string fault() override { return broken; }
};

struct Rank {
  explicit Rank(int size = 1) : group(flight, size) { flight.start(getpid()); }
  void call(const char* stage) { group.barrier(stage); }
  std::vector<std::string> in_state(FlightState state) const {
    std::vector<std::string> out;
    for (const FlightEntry& e : flight.entries())
      if (e.state == state) out.insert(out.begin(), e.stage);
    return out;
  }
  comm::RankFlight flight;
  PretendedGroup group;
};
using Stages = std::vector<std::string>;

TEST(EnqueuedCalls, TheOldestNotDoneIsInFlight) {
  Rank r;
  EXPECT_EQ(r.group.meeting(), program::Meeting::OnDevice);
  EXPECT_TRUE(r.group.watch());
  for (const char* stage : {"a", "b", "c"}) r.call(stage);
  EXPECT_FALSE(r.group.watch());
  EXPECT_EQ(r.in_state(FlightState::InFlight), Stages{"a"});
  r.group.done = 2;
  EXPECT_FALSE(r.group.watch());
  EXPECT_EQ(r.in_state(FlightState::Done), (Stages{"a", "b"}));
  EXPECT_EQ(r.in_state(FlightState::InFlight), Stages{"c"});
  r.group.done = 3;
  EXPECT_TRUE(r.group.watch());
  EXPECT_EQ(r.in_state(FlightState::InFlight), Stages{});
  for (const FlightEntry& e : r.flight.entries()) EXPECT_NE(e.enqueued_ns, 0);
}

// A step enqueues more calls than the recorder has room for.
TEST(EnqueuedCalls, AnyNumberMayBeUnderWay) {
  Rank r;
  constexpr int kCalls = 5 * comm::RankFlight::kNumEntries;
  for (int step = 1; step <= 3; ++step) {
    for (int i = 0; i < kCalls; ++i) r.call("x");
    EXPECT_FALSE(r.group.watch());
    r.group.done = static_cast<uint64_t>(step) * kCalls;
    EXPECT_TRUE(r.group.watch());
  }
  EXPECT_EQ(r.flight.entries().front().sequence, 3u * kCalls - 1);
}

TEST(EnqueuedCalls, AGraphsCallsAreUnderWayWhenItIsLaunched) {
  Rank r;
  r.call("eager");
  r.group.done = 1;
  EXPECT_TRUE(r.group.watch());
  r.group.in_capture = true;
  r.call("a");
  r.call("b");
  r.group.in_capture = false;
  EXPECT_TRUE(r.group.watch());
  const int graph = r.group.captured();
  for (uint64_t launch = 0; launch < 3; ++launch) {
    r.group.launched(graph);
    EXPECT_FALSE(r.group.watch());
    EXPECT_EQ(r.in_state(FlightState::InFlight), Stages{"a"});
    ++r.group.done;
    EXPECT_FALSE(r.group.watch());
    EXPECT_EQ(r.in_state(FlightState::InFlight), Stages{"b"});
    ++r.group.done;
    EXPECT_TRUE(r.group.watch());
  }
  // Numbers go on, so that ranks can be compared.
  const auto entries = r.flight.entries();
  EXPECT_EQ(entries[0].sequence, entries[1].sequence + 1);
  EXPECT_EQ(entries[1].sequence, entries[2].sequence + 1);
}

TEST(EnqueuedCalls, AFailureNamesTheOldestCall) {
  Rank r;
  for (const char* stage : {"a", "b"}) r.call(stage);
  r.group.done = 1;
  r.group.broken = "remote process exited";
  try {
    r.group.watch();
    FAIL() << "not thrown";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ExitCode::Retry);
    EXPECT_EQ(std::string(e.what()), "group 'dp', barrier #1 of stage 'b' on rank 0: remote process exited");
  }
  EXPECT_EQ(r.in_state(FlightState::Failed), Stages{"b"});
}

TEST(EnqueuedCalls, ACallThatCannotBeEnqueuedHasFailed) {
  Rank r;
  r.group.refuses = true;
  EXPECT_THROW(r.call("a"), base::Error);
  EXPECT_EQ(r.in_state(FlightState::Failed), Stages{"a"});
  EXPECT_TRUE(r.group.watch());
}

// The table of who waits where is that of blocking calls.
TEST(EnqueuedCalls, AStallIsFoundByTheWatchdog) {
  Rank here(2);
  comm::RankFlight other;
  other.start(getpid());
  here.call("reduce");
  here.call("gather");
  comm::Options options;
  options.timeout_seconds = 0;
  comm::Watchdog watchdog({{&here.flight, &other}, {0}, false, nullptr}, options);
  watchdog.add_group("dp", testing::all_of(2));
  usleep(20'000);
  const std::string table = watchdog.find_stall(0.01);
  for (const char* words :
       {"group 'dp' barrier #0 stage 'reduce'", "rank 0 has waited", "NOT ARRIVED", "enqueued"})
    EXPECT_NE(table.find(words), std::string::npos) << table;
  here.group.done = 2;
  EXPECT_TRUE(here.group.watch());
  EXPECT_EQ(watchdog.find_stall(0.01), "");
}

TEST(EnqueuedCalls, BlockingCallsAreNeverUnderWay) {
  class Blocking final : public comm::Communicator {
   public:
    explicit Blocking(comm::RankFlight& flight) : Communicator("tp", {0}, 0, flight) {}
    void execute(const comm::Call&) override {}
  };
  comm::RankFlight flight;
  Blocking group(flight);
  group.barrier("x");
  EXPECT_EQ(group.meeting(), program::Meeting::OnHost);
  EXPECT_TRUE(group.watch());
  EXPECT_THROW(group.captured(), base::Error);
}

}  // namespace
}  // namespace pleat
