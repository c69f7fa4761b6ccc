// Calls that do not end: the table, the exit code, the time it takes.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "comm/comm_support.h"
#include "comm/flight.h"
#include "comm/local/local_world.h"
#include "comm/watchdog.h"

namespace pleat {
namespace {

using comm::LocalWorld;
using comm::Reduce;
using testing::bytes_of;

comm::Options short_timeout(double seconds) {
  comm::Options options;
  options.timeout_seconds = seconds;
  return options;
}

// Rank 2 skips a collective and sleeps.
void stall() {
  LocalWorld world(3, short_timeout(0.3));
  comm::run_ranks(world, [&](int rank) {
    const std::vector<int> all = {0, 1, 2};
    const auto c = world.group("dp", all, rank);
    std::vector<float> v(4);
    c->all_reduce("first", std::span(v), Reduce::Sum);
    if (rank == 2) std::this_thread::sleep_for(std::chrono::seconds(30));
    c->all_reduce("second", std::span(v), Reduce::Sum);
  });
}

TEST(StallDeathTest, EndsWithCode75AndATableThatNamesWhoIsMissingAndWhere) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EXIT(stall(), ::testing::ExitedWithCode(75),
              "stall: group 'dp' all_reduce #1 stage 'second', 16 bytes: rank [01] has waited 0.[34] s, the "
              "time-out is "
              "0.3 s(.|\n)*"
              "0  yes +in group 'dp' all_reduce #1 stage 'second'(.|\n)*"
              "1  yes +in group 'dp' all_reduce #1 stage 'second'(.|\n)*"
              "2  NOT ARRIVED  in no call; last was group 'dp' all_reduce #0 stage 'first'");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

// What a rank of another machine told last may be old. Taken for what it waits in now, it would hide who really waits.
TEST(Stall, ARankThatFellSilentIsAwaitedAndDoesNotWait) {
  const std::vector<int> all = {0, 1};
  const auto call = [&](uint64_t sequence, const char* stage, double seconds_ago) {
    comm::FlightEntry e;
    e.group_hash = comm::group_hash("dp", all);
    e.sequence = sequence;
    e.started_ns = comm::steady_ns() - static_cast<int64_t>(seconds_ago * 1e9);
    e.operation = comm::Operation::AllReduce;
    e.state = comm::FlightState::InFlight;
    std::strcpy(e.group, "dp");
    std::strcpy(e.stage, stage);
    return e;
  };
  comm::RankFlight own{}, far{};
  own.start(0), far.start(0);
  const comm::FlightEntry now = call(5, "now", 1), then = call(3, "then", 2);
  own.mirror(comm::RankState::Running, "", std::span(&now, 1));
  far.mirror(comm::RankState::Running, "", std::span(&then, 1));
  for (const bool silent : {false, true}) {
    comm::Watchdog::View view;
    view.flights = {&own, &far};
    view.own = {0};
    view.silent = [silent](int rank) { return silent && rank == 1; };
    comm::Watchdog watchdog(std::move(view), short_timeout(0));
    watchdog.add_group("dp", all);
    const std::string table = watchdog.find_stall(0.5);
    EXPECT_NE(table.find(silent ? "stage 'now', 0 bytes: rank 0 has waited 1.0 s"
                                : "stage 'then', 0 bytes: rank 1 has waited 2.0 s"),
              std::string::npos)
        << table;
    EXPECT_EQ(table.find("   1  silent ") != std::string::npos, silent) << table;
  }
}

// No time-out, but the process was asked to stop while a rank waits for one that never comes.
void stall_when_asked() {
  comm::Options options = short_timeout(0);
  options.stop_seconds = 0.3;
  const auto asked = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  options.called_off = [asked] { return std::chrono::steady_clock::now() >= asked; };
  LocalWorld world(2, options);
  comm::run_ranks(world, [&](int rank) {
    const std::vector<int> all = {0, 1};
    const auto c = world.group("dp", all, rank);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(30));
    c->barrier("step");
  });
}

TEST(StallDeathTest, WithoutATimeOutARankThatIsAskedToStopDoesNotWaitForEver) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EXIT(
      stall_when_asked(), ::testing::ExitedWithCode(75),
      "stall: group 'dp' barrier #0 stage 'step'.*rank 0 has waited 0.[89] s, the time-out is 0.3 s(.|\n)*"
      "1  NOT ARRIVED");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

// Rank 0 fails; rank 1 is in no call that could be called off.
void stuck_elsewhere() {
  LocalWorld world(2, short_timeout(0.3));
  comm::run_ranks(world, [&](int rank) {
    if (rank == 0) base::fail_with(base::ExitCode::Numerical, "no luck");
    std::this_thread::sleep_for(std::chrono::seconds(30));
  });
}

TEST(StallDeathTest, RankThatDoesNotEndAfterAnothersFailure) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(stuck_elsewhere(), ::testing::ExitedWithCode(75),
              "rank 0 failed: no luck\n.*stall: 0.3 s later these have not ended: rank 1\n(.|\n)*"
              "0  failed +no luck(.|\n)*1  running +in no call; none made yet");
}

// The table of a stall that a rank ends itself, through the hook.
std::string table_of(int size, const std::function<void(LocalWorld&, int)>& fn) {
  std::string table;
  LocalWorld* stuck = nullptr;
  comm::Options options = short_timeout(0.2);
  options.on_stall = [&](const std::string& text) {
    table = text;
    stuck->abort(-1, "stalled");
  };
  LocalWorld world(size, options);
  stuck = &world;
  try {
    comm::run_ranks(world, [&](int rank) { fn(world, rank); });
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ExitCode::Retry);
  }
  return table;
}

// Where groups are opened, who has not come is said in one line.
TEST(Stall, RanksThatDoNotComeToAnOpeningAreNamed) {
  const std::vector<int> all = {0, 1, 2, 3};
  const auto come_late = [&](LocalWorld& world, int rank, const char* stage) {
    const auto c = world.group("groups of GPUs", all, rank);
    if (rank == 1 || rank == 3) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    c->barrier(stage);
  };
  const std::string opening =
      table_of(4, [&](LocalWorld& world, int rank) { come_late(world, rank, "opening groups: which"); });
  EXPECT_NE(opening.find("pleat: these ranks have not come: 1, 3\n"), std::string::npos) << opening;
  EXPECT_NE(opening.find("NOT ARRIVED"), std::string::npos) << opening;
  const std::string other = table_of(4, [&](LocalWorld& world, int rank) { come_late(world, rank, "x"); });
  EXPECT_NE(other.find("NOT ARRIVED"), std::string::npos) << other;
  EXPECT_EQ(other.find("have not come"), std::string::npos) << other;
}

TEST(Stall, RanksInOtherGroupsAreShownThere) {
  // 0 waits for 1 in "a"; 1 waits for 2 in "b"; 2 has left.
  const std::string table = table_of(3, [](LocalWorld& world, int rank) {
    const std::vector<int> first = {0, 1}, second = {1, 2};
    float v = 0;
    if (rank == 0) world.group("a", first, rank)->all_reduce("norm", std::span(&v, 1), Reduce::Sum);
    if (rank == 1) world.group("b", second, rank)->barrier("save");
  });
  EXPECT_NE(table.find("in group 'a' all_reduce #0 stage 'norm'"), std::string::npos) << table;
  EXPECT_NE(table.find("in group 'b' barrier #0 stage 'save'"), std::string::npos) << table;
  EXPECT_NE(table.find("none made yet"), std::string::npos) << table;
}

// Rank 1 skipped a call, came to its end first, and waited longest there; what the others wait for is the
// cause.
TEST(Stall, IsNotToldFromARankAtItsEnd) {
  const std::string table = table_of(3, [](LocalWorld& world, int rank) {
    const std::vector<int> all = {0, 1, 2};
    if (rank != 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    world.group(rank == 1 ? comm::kClosing : "dp", all, rank)->barrier("third");
  });
  EXPECT_NE(table.find("stall: group 'dp' barrier #0 stage 'third'"), std::string::npos) << table;
  EXPECT_NE(table.find("1  NOT ARRIVED"), std::string::npos) << table;
}

TEST(Stall, MessagesNameTheirPartner) {
  const std::string table = table_of(3, [](LocalWorld& world, int rank) {
    const std::vector<int> all = {0, 1, 2};
    const auto c = world.group("pp", all, rank);
    std::vector<float> v(4);
    if (rank == 1) c->receive("fwd mb0 receive", 0, 0, bytes_of(v));
  });
  EXPECT_NE(
      table.find("group 'pp' receive #0 stage 'fwd mb0 receive' from rank 0, 16 bytes: rank 1 has waited"),
      std::string::npos)
      << table;
  EXPECT_NE(table.find("0  NOT ARRIVED"), std::string::npos) << table;
  EXPECT_NE(table.find("2  no member"), std::string::npos) << table;
}

TEST(Stall, ManyShortCallsAreNone) {
  const std::string table = table_of(2, [](LocalWorld& world, int rank) {
    const std::vector<int> all = {0, 1};
    const auto c = world.group("dp", all, rank);
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(600);
    for (int32_t go_on = 1; go_on != 0;) {
      go_on = std::chrono::steady_clock::now() < end ? 1 : 0;
      c->all_reduce("again", std::span(&go_on, 1), Reduce::Min);
    }
  });
  EXPECT_EQ(table, "");
}

}  // namespace
}  // namespace pleat
