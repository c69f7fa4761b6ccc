// Enqueued calls over a device that does them when the test says so.
#include "comm/enqueued.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/comm_support.h"
#include "comm/local/local_world.h"
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

// ---- Calls compared over host memory

// An enqueued group of thread ranks, whose device is a local group that does calls at once.
class OverThreads final : public comm::EnqueuedCommunicator {
 public:
  OverThreads(comm::Communicator& device, comm::RankFlight& flight)
      : EnqueuedCommunicator("dp", {device.world_ranks().begin(), device.world_ranks().end()}, device.rank(),
                             flight),
        device_(device) {}
  bool in_capture = false;
  std::vector<std::string> made;

 private:
  void execute(const comm::Call& call) override {
    made.emplace_back(call.stage);
    ++done_;
    switch (call.operation) {
      case comm::Operation::AllReduce:
        return device_.all_reduce("x", call.in, call.out, call.dtype, call.reduce);
      case comm::Operation::AllGather:
        return device_.all_gather_v("x", call.in, call.out, call.send.counts);
      case comm::Operation::Barrier:
        return device_.barrier("x");
      case comm::Operation::Send:
        return device_.send("x", call.peer, call.tag, call.in);
      case comm::Operation::Receive:
        return device_.receive("x", call.peer, call.tag, call.out);
      default:
        base::fail("{} is not in this test", name_of(call.operation));
    }
  }
  uint64_t num_done() const override { return done_; }
  bool capturing() const override { return in_capture; }
  std::string fault() override { return ""; }

  comm::Communicator& device_;
  uint64_t done_ = 0;
};

struct Compared {
  std::vector<std::string> errors;             // by rank
  std::vector<std::vector<std::string>> made;  // stages of the calls that reached the device
};
Compared on_compared_ranks(int size, const std::function<void(OverThreads&)>& fn) {
  comm::Options options;
  options.timeout_seconds = 20;
  comm::LocalWorld world(size, options);
  Compared out;
  out.errors.resize(static_cast<size_t>(size));
  out.made.resize(static_cast<size_t>(size));
  comm::run_ranks(world, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    comm::RankFlight flight;
    flight.start(getpid());
    const auto device = world.group("device", testing::all_of(size), rank);
    OverThreads group(*device, flight);
    group.compare_over(world.group("dp (check)", testing::all_of(size), rank));
    try {
      fn(group);
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ExitCode::BadInput);
      out.errors[r] = e.what();
    }
    out.made[r] = group.made;
  });
  return out;
}

TEST(ComparedCalls, CallsThatAgreeAreMade) {
  const Compared got = on_compared_ranks(3, [](OverThreads& group) {
    std::vector<float> v(8, 1.0F), all(24);
    group.all_reduce("sum", std::span(v), comm::Reduce::Sum);
    EXPECT_EQ(v[7], 3.0F);
    group.all_gather("gather", testing::bytes_of(v), testing::bytes_of(all));
    group.barrier("end");
  });
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(got.errors[r], "");
    EXPECT_EQ(got.made[r], (Stages{"sum", "gather", "end"}));
  }
}

// The words are those of groups that block; nothing that differs reaches the device.
TEST(ComparedCalls, AnotherSizeIsFoundOnEveryRank) {
  const Compared got = on_compared_ranks(3, [](OverThreads& group) {
    group.barrier("before");
    std::vector<float> v(group.rank() == 1 ? 7 : 8);
    group.all_reduce("sum", std::span(v), comm::Reduce::Sum);
  });
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(
        got.errors[r],
        "group 'dp' (ranks 0 1 2), call 1: ranks 0 and 1 do not agree on the shape: rank 0 calls "
        "all_reduce sum f32 32 bytes for stage 'sum' (call 1), rank 1 calls all_reduce sum f32 28 bytes for "
        "stage 'sum' (call 1)");
    EXPECT_EQ(got.made[r], Stages{"before"});
  }
}

TEST(ComparedCalls, AnotherStageIsFound) {
  const Compared got =
      on_compared_ranks(2, [](OverThreads& group) { group.barrier(group.rank() == 0 ? "a" : "b"); });
  for (const std::string& error : got.errors)
    EXPECT_NE(error.find("do not agree on the stage"), std::string::npos) << error;
}

TEST(ComparedCalls, AnotherOperationIsFound) {
  const Compared got = on_compared_ranks(2, [](OverThreads& group) {
    float one = 1;
    if (group.rank() == 0)
      group.barrier("x");
    else
      group.all_reduce("x", std::span(&one, 1), comm::Reduce::Sum);
  });
  for (const std::string& error : got.errors)
    EXPECT_NE(error.find("do not agree on the operation"), std::string::npos) << error;
}

// Messages have two sides that differ, and a captured call was compared when it ran before.
TEST(ComparedCalls, MessagesAndCapturedCallsAreNot) {
  const Compared got = on_compared_ranks(2, [](OverThreads& group) {
    std::vector<float> v(4);
    if (group.rank() == 0)
      group.send("there", 1, 0, testing::bytes_of(v));
    else
      group.receive("here", 0, 0, testing::bytes_of(v));
    group.in_capture = true;
    group.barrier(group.rank() == 0 ? "a" : "b");
  });
  EXPECT_EQ(got.errors, (std::vector<std::string>{"", ""}));
  EXPECT_EQ(got.made[0], (Stages{"there", "a"}));
}

}  // namespace
}  // namespace pleat
