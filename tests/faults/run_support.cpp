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
#include <future>
#include <memory>
#include <mutex>
#include <regex>
#include <thread>

#include "base/error.h"
#include "comm/flight.h"
#include "comm/tcp/socket.h"
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

// A process in a group of its own, so that a launcher that hangs is ended with its children, and what it says.
class Child {
 public:
  // `listening`: a descriptor it shall have as kListening; -1: none.
  Child(std::vector<std::string> words, std::vector<std::string> environment, int listening = -1) {
    int ends[2];
    PLEAT_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "no pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    if (listening >= 0) posix_spawn_file_actions_adddup2(&actions, listening, kListening);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    const std::vector<char*> argv = pointers(words), envp = pointers(environment);
    const int failed = ::posix_spawn(&pid_, argv[0], &actions, &attributes, argv.data(), envp.data());
    PLEAT_CHECK(failed == 0, "cannot start {}", words[0]);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    ::close(ends[1]);
    output_ = ends[0];
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { ::close(output_); }

  static constexpr int kListening = 100;
  pid_t pid() const { return pid_; }
  void kill() const { ::kill(-pid_, SIGKILL); }

  // Until it has ended; kills it when it hangs.
  void read(Outcome& out) const {
    char buffer[4096];
    for (;;) {
      if (!out.hung && seconds_since(start_) > kLongest) {
        out.hung = true;
        kill();
      }
      pollfd ready{output_, POLLIN, 0};
      if (::poll(&ready, 1, 200) <= 0) continue;
      const ssize_t n = ::read(output_, buffer, sizeof buffer);
      if (n <= 0) break;
      out.said.append(buffer, static_cast<size_t>(n));
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    out.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  static std::vector<char*> pointers(std::vector<std::string>& words) {
    std::vector<char*> all;
    for (std::string& word : words) all.push_back(word.data());
    all.push_back(nullptr);
    return all;
  }

  const int64_t start_ = comm::steady_ns();
  pid_t pid_ = -1;
  int output_ = -1;
};

std::vector<std::string> own_environment() {
  std::vector<std::string> all;
  for (char** at = environ; *at != nullptr; ++at) all.emplace_back(*at);
  return all;
}

// Seconds from the fault that `said` tells of, "fault KIND on rank ... at NANOSECONDS"; -1: none. Looked for by hand,
// because regular expressions share a table that threads fill without a lock.
double seconds_after_fault(const std::string& said, int64_t end) {
  const size_t line = ("\n" + said).find("\nfault "), stop = said.find('\n', line);
  if (stop == std::string::npos) return -1;
  return static_cast<double>(end - std::stoll(said.substr(said.rfind(' ', stop) + 1))) * 1e-9;
}

Outcome run_ranks(const Case& one) {
  const int64_t start = comm::steady_ns();
  const int size = static_cast<int>(one.ranks.size());
  comm::tcp::Socket listening = comm::tcp::listen_at(0);
  const int port = comm::tcp::port_of(listening);
  if (!one.ranks[0].started) listening.close();  // or the others would meet nobody there
  const auto last_beside =
      one.beside ? std::async(std::launch::async, one.beside, port) : std::future<void>();
  std::vector<std::unique_ptr<Child>> children(one.ranks.size());
  for (int r = 0; r < size; ++r) {
    const EndOfRank& rank = one.ranks[static_cast<size_t>(r)];
    if (!rank.started) continue;
    std::vector<std::string> environment = rank.environment;  // the first of a name counts
    for (const std::string& set :
         {fmt::format("RANK={}", r), fmt::format("WORLD_SIZE={}", size), fmt::format("LOCAL_RANK={}", r),
          fmt::format("LOCAL_WORLD_SIZE={}", size), std::string("MASTER_ADDR=127.0.0.1"),
          fmt::format("MASTER_PORT={}", port), std::string("PLEAT_JOB_TOKEN=of this job")})
      environment.push_back(set);
    if (r == 0) environment.push_back(fmt::format("PLEAT_LISTENING={}", Child::kListening));
    for (const std::string& set : own_environment()) environment.push_back(set);
    children[static_cast<size_t>(r)] =
        std::make_unique<Child>(one.command, environment, r == 0 ? listening.descriptor() : -1);
  }
  listening.close();
  Outcome out;
  out.ranks.resize(one.ranks.size());
  std::mutex mutex;
  int64_t end = start;
  const auto read = [&](size_t r) {
    children[r]->read(out.ranks[r]);
    const std::lock_guard lock(mutex);
    if (!one.ranks[r].stopped) end = std::max(end, comm::steady_ns());
  };
  std::vector<std::thread> readers, last;
  for (size_t r = 0; r < children.size(); ++r)
    if (children[r]) (one.ranks[r].stopped ? last : readers).emplace_back(read, r);
  for (std::thread& reader : readers) reader.join();
  for (size_t r = 0; r < children.size(); ++r)
    if (one.ranks[r].stopped) children[r]->kill();
  for (std::thread& reader : last) reader.join();
  for (size_t r = 0; r < children.size(); ++r) {
    out.said += out.ranks[r].said;
    out.hung |= out.ranks[r].hung;
  }
  out.code = 0;
  for (const Outcome& rank : out.ranks)
    if (out.code == 0 || out.code == 128 + SIGKILL) out.code = std::max(rank.code, 0);
  out.seconds = one.from_start ? static_cast<double>(end - start) * 1e-9 : seconds_after_fault(out.said, end);
  return out;
}

Outcome run(const Case& one) {
  if (!one.ranks.empty()) return run_ranks(one);
  const Child child(one.command, own_environment());
  Outcome out;
  std::atomic<bool> launcher_ended{false};
  int64_t ranks_ended = 0;
  std::thread observer;
  if (!one.mark.empty())
    observer = std::thread([&, seen = false]() mutable {
      while (!launcher_ended) {
        const bool there = any_rank(one.mark, child.pid());
        if (seen && !there) {
          ranks_ended = comm::steady_ns();
          return;
        }
        seen |= there;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    });
  child.read(out);
  int64_t end = comm::steady_ns();
  if (observer.joinable()) {
    launcher_ended = true;
    observer.join();
    if (ranks_ended != 0) end = ranks_ended;
  }
  out.seconds = seconds_after_fault(out.said, end);
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
    // Ranks that are looked at one by one have a code each.
    if (one.ranks.empty() && (one.code >= 0 ? out.code != one.code : out.code == 0))
      fault += fmt::format("; needed code {}", one.code);
    for (const std::string& word : one.words)
      if (!std::regex_search(out.said, std::regex(word))) fault += "; not said: " + word;
    for (size_t r = 0; r < one.ranks.size(); ++r) {
      const EndOfRank& needed = one.ranks[r];
      if (!needed.started) continue;
      const int code = out.ranks[r].code;
      if (needed.code < 0 ? code != 65 && code != 75 : code != needed.code)
        fault += fmt::format("; rank {} ended with code {}, needed {}", r, code,
                             needed.code < 0 ? "65 or 75" : std::to_string(needed.code));
      for (const std::string& word : needed.words)
        if (!std::regex_search(out.ranks[r].said, std::regex(word)))
          fault += fmt::format("; rank {} did not say: {}; but: {}", r, word, out.ranks[r].said);
    }
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
