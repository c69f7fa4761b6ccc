// A rank goes wrong at one operation of a small world, over threads and over MPI: what is said, and how soon.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "faults/run_support.h"

namespace pleat {
namespace {

using testing::Case;
using testing::row_of_rank;

const std::vector<std::string> kOperations = {
    "all_reduce",   "reduce_scatter", "reduce_scatter_v", "all_gather",
    "all_gather_v", "all_to_all_v",   "broadcast",        "barrier",
    "send",         "receive",        "send_receive",
};
constexpr double kTimeout = 1;

bool is_message(const std::string& operation) {
  return operation == "send" || operation == "receive" || operation == "send_receive";
}

// As tables name it.
std::string recorded(const std::string& operation) {
  return operation.ends_with("_v") ? operation.substr(0, operation.size() - 2) : operation;
}

// The call rank 0 waits in.
std::string waiting(const std::string& operation) {
  if (operation == "send") return "group 'dp' receive #0 stage 'second' from rank 1";
  if (operation == "receive") return "group 'dp' send #0 stage 'second' to rank 1";
  return fmt::format("group 'dp' {} #{} stage 'second'", recorded(operation), is_message(operation) ? 0 : 1);
}

const std::string kFirst = "in no call; last was group 'dp' all_reduce #0 stage 'first'";

int ranks_for(const std::string& operation) {
  return is_message(operation) ? 2 : operation == "all_gather" || operation == "all_to_all_v" ? 4 : 3;
}

// Rank 0 waits, rank 1 has not come.
std::vector<std::string> missing(const std::string& operation, const std::string& opening,
                                 const std::string& where) {
  return {opening, waiting(operation), row_of_rank(0, "yes", "in " + waiting(operation)),
          row_of_rank(1, "NOT ARRIVED", where)};
}

// What must be said and the exit code when rank 1 does `fault` at `operation` instead of coming to it.
void expect(Case& c, const std::string& operation, const std::string& fault, bool mpi, bool check) {
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
  if (fault == "skip" && is_message(operation)) {
    // Each waits for the other.
    c.words = {"stall: group 'dp'", row_of_rank(0, "(yes|NOT ARRIVED)", "in " + waiting(operation)),
               row_of_rank(1, "(yes|NOT ARRIVED)", "in group 'dp' barrier #1 stage 'third'")};
  } else if (fault == "skip" && operation == "barrier" && !check) {
    // Two barriers are like each other: the one that is left over at the end is found.
    c.words = {"stall: group 'dp' barrier #2 stage 'third'",
               row_of_rank(0, "yes", "barrier #2 stage 'third'"),
               mpi ? row_of_rank(1, "NOT ARRIVED", "in group 'world \\(closing\\)'")
                   : row_of_rank(1, "NOT ARRIVED",
                                 "has ended; in no call; last was group 'dp' barrier #1 stage 'third'")};
  } else if (fault == "skip" && mpi && !check) {
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
        fmt::format("group 'dp'[^\n]*{}[^\n]*'second'", mpi || !is_message(operation) ? "" : "on rank [01]"),
        mpi && !check                 ? "on rank [0-9]: rank [0-9] sent (more than the )?[0-9]+ bytes"
        : is_message(operation)       ? "[0-9]+ bytes sent for stage 'second', [0-9]+ bytes awaited"
        : operation == "all_to_all_v" ? "rank 1 sends 262143 bytes to rank 0, which awaits 262144 bytes"
                                      : "ranks 0 and 1 do not agree on the shape",
        row_of_rank(0, "(failed|running)", "group 'dp'"), row_of_rank(1, "(failed|running)", "group 'dp'")};
  }
}

// `timeout` < 0: chosen so that a case which needs no time-out to be found shows that it was not used.
Case make(const std::string& operation, const std::string& fault, bool mpi, bool check, double timeout = -1) {
  Case c;
  expect(c, operation, fault, mpi, check);
  const bool waits = std::any_of(c.words.begin(), c.words.end(),
                                 [](const std::string& w) { return w.starts_with("stall"); });
  c.timeout_seconds = timeout >= 0 ? timeout : waits ? kTimeout : 30;
  c.limit_seconds = kTimeout + 1;
  c.name = fmt::format("{} x {}, {}, {}{}", ranks_for(operation), mpi ? "mpi" : "threads", operation, fault,
                       check ? ", check" : "");
  if (mpi) {
    std::istringstream words(fmt::format(fmt::runtime(PLEAT_MPIRUN), ranks_for(operation)));
    for (std::string word; words >> word;) c.command.push_back(word);
  }
  for (const std::string& word :
       {std::string(PLEAT_FAULT_RANKS), mpi ? "mpi" : std::to_string(ranks_for(operation)), operation,
        fault + ":1:second", fmt::format("{}", c.timeout_seconds)})
    c.command.push_back(word);
  c.command.push_back(check ? "check" : "plain");
  if (mpi)
    c.command.push_back(c.mark = fmt::format("case-{}-{}-{}", getpid(), operation, fault + c.command.back()));
  return c;
}

void run(const std::vector<Case>& cases, int at_once) { judge(cases, testing::run_cases(cases, at_once)); }

TEST(Faults, ThreadRanks) {
  std::vector<Case> cases;
  for (const std::string& operation : kOperations)
    for (const char* fault : {"throw", "sleep", "skip", "size"})
      if (operation != "barrier" || std::string(fault) != "size")
        cases.push_back(make(operation, fault, false, false));
  cases.push_back(make("barrier", "skip", false, true));
  cases.push_back(make("all_gather", "throw", false, false, 0));  // nobody watches the time
  run(cases, 12);
}

TEST(Faults, MpiRanks) {
  if (std::string(PLEAT_MPIRUN).empty()) GTEST_SKIP() << "no MPI in this build";
  const bool all = std::getenv("PLEAT_FAULTS_ALL") != nullptr;
  std::vector<Case> cases;
  for (size_t i = 0; i < kOperations.size(); ++i) {
    const std::string& operation = kOperations[i];
    cases.push_back(make(operation, "kill", true, false));
    // The other faults at every second operation each.
    if (all || i % 3 == 0) cases.push_back(make(operation, "stop", true, false));
    if (all || i % 3 != 0) cases.push_back(make(operation, "skip", true, false));
    if ((all || i % 2 == 0) && operation != "barrier") cases.push_back(make(operation, "size", true, false));
    if (all) cases.push_back(make(operation, "throw", true, false));
  }
  cases.push_back(make("all_reduce", "throw", true, false));
  cases.push_back(make("all_reduce", "skip", true, true));
  cases.push_back(make("all_gather_v", "size", true, true));
  cases.push_back(make("all_gather", "kill", true, false, 0));
  run(cases, 4);
}

}  // namespace
}  // namespace pleat
