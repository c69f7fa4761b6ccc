// A rank goes wrong at one operation of a small world, over threads, MPI and TCP: what is said, and how soon.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "comm/tcp/socket.h"
#include "faults/operations_support.h"
#include "faults/run_support.h"

namespace pleat {
namespace {

using testing::Case;
using testing::is_message;
using testing::kFaultOperations;
using testing::ranks_for;
using testing::recorded;
using testing::row_of_rank;
using testing::waiting;

constexpr double kTimeout = 1;

const std::string kFirst = "in no call; last was group 'dp' all_reduce #0 stage 'first'";

// Rank 0 waits, rank 1 has not come.
std::vector<std::string> missing(const std::string& operation, const std::string& opening,
                                 const std::string& where) {
  return {opening, waiting(operation), row_of_rank(0, "yes", "in " + waiting(operation)),
          row_of_rank(1, "NOT ARRIVED", where)};
}

enum class Over : uint8_t { Threads, Mpi, Tcp };
constexpr const char* kNames[] = {"threads", "mpi", "tcp"};

// What must be said and the exit code when rank 1 does `fault` at `operation` instead of coming to it.
void expect(Case& c, const std::string& operation, const std::string& fault, Over over, bool check) {
  const bool processes = over != Over::Threads;
  c.code = 75;
  if (fault == "throw")
    c.words =
        missing(operation, "pleat: rank 1(:| failed:) fault on purpose before [a-z_]+ of stage 'second'",
                "fault on purpose[^\n]*" + kFirst);
  if (fault == "sleep" || fault == "stop")
    c.words =
        missing(operation,
                fmt::format("stall: group 'dp' [a-z_]+ #[01] stage 'second'[^\n]*: rank [0-9] has waited "
                            "[01].[0-9] s, the time-out is {:g} s",
                            kTimeout),
                kFirst);
  if (fault == "kill") {
    c.code = -1;  // mpirun says 137 for the one it lost
    c.words = missing(operation, "pleat: rank 1 is gone \\(process [0-9]+ has ended\\)",
                      "process [0-9]+ has ended; " + kFirst);
  }
  if (fault == "order" && is_message(operation)) {
    c.words = {"stall: group 'dp'", row_of_rank(0, "(yes|NOT ARRIVED)", "in " + waiting(operation)),
               row_of_rank(1, "(yes|NOT ARRIVED)", "in group 'dp' barrier #1 stage 'third'")};
  } else if (fault == "order") {
    c.words = {"stall: group 'dp'", row_of_rank(0, "(yes|OTHER CALL)", "in " + waiting(operation)),
               row_of_rank(1, "(yes|OTHER CALL)", "in group 'dp' barrier #1 stage 'third'")};
  }
  if (fault == "skip" && is_message(operation)) {
    // Each waits for the other.
    c.words = {"stall: group 'dp'", row_of_rank(0, "(yes|NOT ARRIVED)", "in " + waiting(operation)),
               row_of_rank(1, "(yes|NOT ARRIVED)", "in group 'dp' barrier #1 stage 'third'")};
  } else if (fault == "skip" && operation == "barrier" && !check) {
    // Two barriers are like each other: the one that is left over at the end is found.
    c.words = {
        "stall: group 'dp' barrier #2 stage 'third'", row_of_rank(0, "yes", "barrier #2 stage 'third'"),
        processes ? row_of_rank(1, "NOT ARRIVED", "in group 'world \\(closing\\)'")
                  : row_of_rank(1, "NOT ARRIVED",
                                "has ended; in no call; last was group 'dp' barrier #1 stage 'third'")};
  } else if (fault == "skip" && processes && !check) {
    c.words = {"stall: " + waiting(operation), row_of_rank(0, "yes", "in " + waiting(operation)),
               row_of_rank(1, "OTHER CALL", "in group 'dp' barrier #1 stage 'third'")};
  } else if (fault == "skip") {
    c.code = 65;
    c.words = {fmt::format("group 'dp' \\(ranks 0 1[^\n]*call 1: ranks 0 and 1 do not agree on the {}",
                           operation == "barrier" ? "stage" : "operation"),
               "rank 0 calls " + recorded(operation) + "[^\n]*'second'", "rank 1 calls barrier[^\n]*'third'",
               row_of_rank(0, "(failed|running)", "group 'dp' " + recorded(operation) + " #1 stage 'second'"),
               row_of_rank(1, "(failed|running)", "group 'dp' barrier #1 stage 'third'")};
  }
  if (fault == "size") {
    c.code = 65;
    c.words = {
        fmt::format("group 'dp'[^\n]*{}[^\n]*'second'",
                    processes || !is_message(operation) ? "" : "on rank [01]"),
        processes && !check           ? "on rank [0-9]: rank [0-9] sent (more than the )?[0-9]+ bytes"
        : is_message(operation)       ? "[0-9]+ bytes sent for stage 'second', [0-9]+ bytes awaited"
        : operation == "all_to_all_v" ? "rank 1 sends 262143 bytes to rank 0, which awaits 262144 bytes"
                                      : "ranks 0 and 1 do not agree on the shape",
        row_of_rank(0, "(failed|running)", "group 'dp'"), row_of_rank(1, "(failed|running)", "group 'dp'")};
  }
}

// Each rank that is left names group, stage and a rank itself, and ends with the documented code.
std::vector<testing::EndOfRank> ends_of(const Case& c, const std::string& operation, const std::string& fault,
                                        bool check) {
  std::vector<testing::EndOfRank> ranks(static_cast<size_t>(ranks_for(operation)));
  for (testing::EndOfRank& rank : ranks) {
    rank.code = 75;
    rank.words = {"pleat: [^\n]*rank [0-9]", "group 'dp'", "stage '(second|third)'"};
  }
  if (fault == "kill") ranks[1] = {.code = 137, .words = {}};
  if (fault == "stop") ranks[1] = {.code = 137, .words = {}, .stopped = true};
  if (c.code == 65) {  // whoever sees the difference; with comm.check all do
    for (testing::EndOfRank& rank : ranks) rank.code = check ? 65 : -1;
  }
  return ranks;
}

// `timeout` < 0: chosen so that a case which needs no time-out to be found shows that it was not used.
Case make(const std::string& operation, const std::string& fault, Over over, bool check,
          double timeout = -1) {
  const bool mpi = over == Over::Mpi;
  Case c;
  expect(c, operation, fault, over, check);
  const bool waits = std::any_of(c.words.begin(), c.words.end(),
                                 [](const std::string& w) { return w.starts_with("stall"); });
  c.timeout_seconds = timeout >= 0 ? timeout : waits ? kTimeout : 30;
  c.limit_seconds = kTimeout + 1;
  c.name = fmt::format("{} x {}, {}, {}{}", ranks_for(operation), kNames[int(over)], operation, fault,
                       check ? ", check" : "");
  if (mpi) {
    std::istringstream words(fmt::format(fmt::runtime(PLEAT_MPIRUN), ranks_for(operation)));
    for (std::string word; words >> word;) c.command.push_back(word);
  }
  for (const std::string& word :
       {std::string(PLEAT_FAULT_RANKS),
        over == Over::Threads ? std::to_string(ranks_for(operation)) : kNames[int(over)], operation,
        fault == "order" ? fault : fault + ":1:second", fmt::format("{}", c.timeout_seconds)})
    c.command.push_back(word);
  c.command.push_back(check ? "check" : "plain");
  if (mpi)
    c.command.push_back(c.mark = fmt::format("case-{}-{}-{}", getpid(), operation, fault + c.command.back()));
  if (over == Over::Tcp) c.ranks = ends_of(c, operation, fault, check);
  return c;
}

void run(const std::vector<Case>& cases, int at_once) { judge(cases, testing::run_cases(cases, at_once)); }

TEST(Faults, ThreadRanks) {
  std::vector<Case> cases;
  for (const std::string& operation : kFaultOperations)
    for (const char* fault : {"throw", "sleep", "skip", "size"})
      if (operation != "barrier" || std::string(fault) != "size")
        cases.push_back(make(operation, fault, Over::Threads, false));
  cases.push_back(make("barrier", "skip", Over::Threads, true));
  cases.push_back(make("all_gather", "throw", Over::Threads, false, 0));  // nobody watches the time
  run(cases, 12);
}

TEST(Faults, MpiRanks) {
  if (std::string(PLEAT_MPIRUN).empty()) GTEST_SKIP() << "no MPI in this build";
  const bool all = std::getenv("PLEAT_FAULTS_ALL") != nullptr;
  std::vector<Case> cases;
  for (size_t i = 0; i < kFaultOperations.size(); ++i) {
    const std::string& operation = kFaultOperations[i];
    cases.push_back(make(operation, "kill", Over::Mpi, false));
    // The other faults at every second operation each.
    if (all || i % 3 == 0) cases.push_back(make(operation, "stop", Over::Mpi, false));
    if (all || i % 3 != 0) cases.push_back(make(operation, "skip", Over::Mpi, false));
    if ((all || i % 2 == 0) && operation != "barrier")
      cases.push_back(make(operation, "size", Over::Mpi, false));
    if (all) cases.push_back(make(operation, "throw", Over::Mpi, false));
  }
  cases.push_back(make("all_reduce", "throw", Over::Mpi, false));
  cases.push_back(make("all_reduce", "skip", Over::Mpi, true));
  cases.push_back(make("all_gather_v", "size", Over::Mpi, true));
  cases.push_back(make("all_gather", "kill", Over::Mpi, false, 0));
  run(cases, 4);
}

TEST(Faults, TcpRanks) {
  const bool all = std::getenv("PLEAT_FAULTS_ALL") != nullptr;
  const char* const faults[] = {"kill", "throw", "stop", "sleep", "size", "skip", "order"};
  std::vector<Case> cases;
  for (size_t i = 0; i < kFaultOperations.size(); ++i)
    for (size_t f = 0; f < std::size(faults); ++f) {
      const std::string& operation = kFaultOperations[i];
      const std::string fault = faults[f];
      // A barrier has no size, and two of them no order unless stages are compared.
      if (operation == "barrier" && (fault == "size" || fault == "order")) continue;
      // By default a kill at every operation, and each other fault at every third.
      if (all || f == 0 || (i + f) % 3 == 0) cases.push_back(make(operation, fault, Over::Tcp, false));
    }
  cases.push_back(make("all_reduce", "skip", Over::Tcp, true));
  cases.push_back(make("all_gather_v", "size", Over::Tcp, true));
  cases.push_back(make("all_gather", "kill", Over::Tcp, false, 0));  // nobody watches the time
  run(cases, 12);
}

// ---- The start over TCP

// All ranks end, or come to the end of their calls, `in time`.
Case start_of(const std::string& name, int num_ranks) {
  Case c;
  c.name = fmt::format("{} x tcp, {}", num_ranks, name);
  c.timeout_seconds = kTimeout;
  c.limit_seconds = kTimeout + 1;
  c.from_start = true;
  c.command = {PLEAT_FAULT_RANKS, "tcp", "all_reduce", "none", fmt::format("{}", kTimeout), "plain"};
  c.ranks.resize(static_cast<size_t>(num_ranks));
  return c;
}

Case all_come(const std::string& name, int num_ranks) {
  Case c = start_of(name, num_ranks);
  for (testing::EndOfRank& rank : c.ranks) rank.words = {"^all calls made\n$"};
  return c;
}

// What the strangers of a case say; then they wait to be turned away.
std::function<void(int)> say(const std::vector<std::string>& words) {
  return [words](int port) {
    std::vector<comm::tcp::Socket> strangers;
    for (size_t i = 0; i < words.size(); ++i)
      strangers.push_back(
          comm::tcp::connect_to("127.0.0.1", port, comm::tcp::Clock::now() + std::chrono::seconds(5)));
    std::string why;
    for (size_t i = 0; i < words.size(); ++i)
      (void)write_all(strangers[i], std::as_bytes(std::span(words[i])),
                      comm::tcp::Clock::now() + std::chrono::seconds(1), why);
    std::byte greeting[32], more[1];
    for (size_t i = 0; i < words.size(); ++i) {
      const auto until = comm::tcp::Clock::now() + std::chrono::seconds(1);
      if (read_all(strangers[i], greeting, until, why)) (void)read_all(strangers[i], more, until, why);
    }
  };
}

TEST(Faults, TheStartOverTcp) {
  std::vector<Case> cases;
  cases.push_back(all_come("all come", 3));

  cases.push_back(start_of("a rank never comes", 3));
  cases.back().ranks = {
      {.code = 75, .words = {"rank 0 has waited at port [0-9]+, and these ranks have not come: 2"}},
      {.code = 75, .words = {"rank 1 waited at rank 0 for the others to come"}},
      {.started = false}};
  cases.push_back(start_of("rank 0 never comes", 2));
  cases.back().ranks = {{.started = false},
                        {.code = 75, .words = {"rank 1 cannot reach rank 0 at 127.0.0.1:[0-9]+ within 1 s"}}};

  cases.push_back(start_of("a wrong token", 3));
  cases.back().ranks = {
      {.code = 75,
       .words = {"these ranks have not come: 1; turned away: 127.0.0.1 \\(has another job's token\\)"}},
      {.code = 75,
       .words = {"rank 1 cannot reach rank 0 at [^\n]*another job listens here: the tokens differ"},
       .environment = {"PLEAT_JOB_TOKEN=of another job"}},
      {.code = 75, .words = {"rank 2 waited at rank 0 for the others to come"}}};
  cases.push_back(start_of("a wrong size", 2));
  cases.back().ranks = {
      {.code = 75, .words = {"these ranks have not come: 1; turned away: [^\n]*says the world has 3 ranks"}},
      {.code = 75,
       .words = {"rank 0 was told that the world has 2 ranks, not 3"},
       .environment = {"WORLD_SIZE=3"}}};

  const std::string other_version = std::string("PLEATCOM\x63\0\0\0", 12) + std::string(156, 'x');
  cases.push_back(all_come("strangers on the port", 3));
  cases.back().beside =
      say({"GET / HTTP/1.0\r\n\r\n", "", other_version, std::string("\0\0\0\0\0\0\0\0", 8), "PLEATCOM"});
  cases.push_back(start_of("strangers on the port, and a rank that never comes", 2));
  cases.back().beside = say({"GET / HTTP/1.0\r\n\r\n", other_version});
  cases.back().ranks = {{.code = 75,
                         .words = {"these ranks have not come: 1; turned away: ", "speaks another language",
                                   "speaks version 99"}},
                        {.started = false}};
  run(cases, 8);
}

}  // namespace
}  // namespace pleat
