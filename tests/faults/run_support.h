// Commands as child processes, several at a time, with what they said and when they ended.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace pleat::testing {

// What one rank shall end with, where each is a process that is looked at by itself.
struct EndOfRank {
  int code = 0;                            // -1: 65 or 75
  std::vector<std::string> words{};        // in what it says itself
  bool started = true;                     // false: it never comes
  bool stopped = false;                    // it is there until all others have ended
  std::vector<std::string> environment{};  // NAME=VALUE, beside torchrun's variables
};

struct Case {
  std::string name;
  std::vector<std::string> command;
  double timeout_seconds = 0;      // of the ranks' calls
  double limit_seconds = 0;        // from the fault to the end of the last rank
  std::string mark;                // under a launcher: an argument that only the ranks of this case have
  int code = 0;                    // -1: the launcher's, any but 0
  std::vector<std::string> words;  // regular expressions that must be found in what is said
  // Not empty: the command is started so often, with torchrun's variables, and what is said is that of all.
  std::vector<EndOfRank> ranks{};
  std::function<void(int port)> beside{};  // done while they meet at that port of this machine
  bool from_start = false;  // the limit is counted from the start: nobody says when the fault was
};

struct Outcome {
  int code = -1;
  std::string said;    // output and errors together
  double seconds = 0;  // from the fault to the end of the last rank; a launcher needs a second more
  bool hung = false;   // it was ended by the test
  std::vector<Outcome> ranks{};
};

// For Case::words: a row of the table a stall prints.
std::string row_of_rank(int rank, const std::string& state, const std::string& where);

// Runs all, `at_once` at a time. A case that is right but late is run once more, alone: other work on the
// machine may have been in its way.
std::vector<Outcome> run_cases(const std::vector<Case>& cases, int at_once);

// Fails the running test for each case that did not end as it should. With PLEAT_FAULTS_TABLE in the
// environment all cases are listed at the end of the program.
void judge(const std::vector<Case>& cases, const std::vector<Outcome>& outcomes);

}  // namespace pleat::testing
