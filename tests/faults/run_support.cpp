#include "faults/run_support.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <thread>

#include "base/error.h"
#include "comm/flight.h"
#include "support/process.h"

extern char** environ;

namespace pleat::testing {
namespace {

constexpr double kLongest = 60;  // seconds until a child counts as hung
std::vector<std::string> rows;

double seconds_since(int64_t ns) { return static_cast<double>(comm::steady_ns() - ns) * 1e-9; }

// Whether a process that is not `launcher` has `mark` among its arguments. The dead have none.
bool any_rank(const std::string& mark, pid_t launcher) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos || name == std::to_string(launcher))
      continue;
    if (testing::read_by_now(entry.path() / "cmdline").find(mark) != std::string::npos) return true;
  }
  return false;
}

Outcome run(const Case& one) {
  int ends[2];
  PLEAT_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "no pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  posix_spawnattr_t attributes;  // a group of its own: a launcher that hangs is ended with its children
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::vector<std::string> words = one.command;
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int64_t start = comm::steady_ns();
  const int failed = ::posix_spawn(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  PLEAT_CHECK(failed == 0, "cannot start {}", words[0]);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  ::close(ends[1]);

  Outcome out;
  std::atomic<bool> launcher_ended{false};
  int64_t ranks_ended = 0;
  std::thread observer;
  if (!one.mark.empty())
    observer = std::thread([&, seen = false]() mutable {
      while (!launcher_ended) {
        const bool there = any_rank(one.mark, pid);
        if (seen && !there) {
          ranks_ended = comm::steady_ns();
          return;
        }
        seen |= there;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    });
  char buffer[4096];
  for (;;) {
    if (!out.hung && seconds_since(start) > kLongest) {
      out.hung = true;
      ::kill(-pid, SIGKILL);
    }
    pollfd ready{ends[0], POLLIN, 0};
    if (::poll(&ready, 1, 200) <= 0) continue;
    const ssize_t n = ::read(ends[0], buffer, sizeof buffer);
    if (n <= 0) break;
    out.said.append(buffer, static_cast<size_t>(n));
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  int64_t end = comm::steady_ns();
  if (observer.joinable()) {
    launcher_ended = true;
    observer.join();
    if (ranks_ended != 0) end = ranks_ended;
  }
  ::close(ends[0]);
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  out.seconds = -1;
  // "fault KIND on rank ... at NANOSECONDS"; looked for by hand, because regular expressions share a table
  // that threads fill without a lock.
  if (const size_t line = ("\n" + out.said).find("\nfault "), stop = out.said.find('\n', line);
      stop != std::string::npos)
    out.seconds =
        static_cast<double>(end - std::stoll(out.said.substr(out.said.rfind(' ', stop) + 1))) * 1e-9;
  return out;
}

}  // namespace

std::string row_of_rank(int rank, const std::string& state, const std::string& where) {
  return fmt::format("\n +{}  {} +[^\n]*{}", rank, state, where);
}

std::vector<Outcome> run_cases(const std::vector<Case>& cases, int at_once) {
  std::vector<Outcome> outcomes(cases.size());
  std::atomic<size_t> next{0};
  std::vector<std::thread> workers;
  for (int i = 0; i < at_once; ++i)
    workers.emplace_back([&] {
      for (size_t c; (c = next++) < cases.size();) outcomes[c] = run(cases[c]);
    });
  for (std::thread& worker : workers) worker.join();
  for (size_t c = 0; c < cases.size(); ++c)
    if (!outcomes[c].hung && outcomes[c].seconds > cases[c].limit_seconds) outcomes[c] = run(cases[c]);
  return outcomes;
}

void judge(const std::vector<Case>& cases, const std::vector<Outcome>& outcomes) {
  for (size_t c = 0; c < cases.size(); ++c) {
    const Case& one = cases[c];
    const Outcome& out = outcomes[c];
    const std::string said = fmt::format("{}, said:\n{}", one.name, out.said);
    std::string fault;
    if (out.hung) fault += "; hung";
    if (out.said.find("Sanitizer") != std::string::npos) fault += "; a sanitizer's report";
    if (out.seconds < 0) fault += "; the fault was never reached";
    if (out.seconds > one.limit_seconds) fault += fmt::format("; later than {:.1f} s", one.limit_seconds);
    if (one.code >= 0 ? out.code != one.code : out.code == 0)
      fault += fmt::format("; needed code {}", one.code);
    for (const std::string& word : one.words)
      if (!std::regex_search(out.said, std::regex(word))) fault += "; not said: " + word;
    EXPECT_EQ(fault, "") << said;
    rows.push_back(fmt::format("{:<62}  {:>8.0f}  {:>5.0f}  {:>7.2f}  {:>4}  {}", one.name,
                               one.timeout_seconds, one.limit_seconds, out.seconds, out.code,
                               fault.empty() ? "ended" : "WRONG" + fault));
  }
}

namespace {

class PrintTable : public ::testing::Environment {
 public:
  void TearDown() override {
    if (!std::getenv("PLEAT_FAULTS_TABLE")) return;
    fmt::print("{:<62}  {:>8}  {:>5}  {:>7}  {:>4}\n", "case", "time-out", "limit", "seconds", "code");
    for (const std::string& row : rows) fmt::print("{}\n", row);
    fmt::print("{} cases\n", rows.size());
  }
};
const auto* const kTable = ::testing::AddGlobalTestEnvironment(new PrintTable);

}  // namespace

}  // namespace pleat::testing
