#include "comm/process/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "comm/door.h"
#include "comm/process/said.h"
#include "comm/tcp/handshake.h"
#include "comm/world.h"

extern char** environ;

namespace pleat::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kHandedOn[] = {SIGINT, SIGTERM, SIGHUP};

bool is_ignored(int signal) {
  struct sigaction action {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

std::string random_token() {
  std::string text;
  for (const std::byte b : tcp::make_nonce()) text += fmt::format("{:02x}", static_cast<unsigned>(b));
  return text;
}

// The environment of this process with other values for some names; those with none are left out.
std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& values) {
  std::vector<std::string> out;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry = *e;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (std::none_of(values.begin(), values.end(), [&](const auto& v) { return v.first == name; }))
      out.emplace_back(entry);
  }
  for (const auto& [name, value] : values)
    if (!value.empty()) out.push_back(name + "=" + value);
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

struct Rank {
  pid_t process = -1;  // -1: has ended
  int status = 0;
  bool stopped = false;
};

class Launch {
 public:
  Launch(const std::vector<std::string>& command, const LaunchOptions& options)
      : options_(options), command_(command) {
    sigemptyset(&waited_);
    sigaddset(&waited_, SIGCHLD);
    // Under nohup a run is to outlive its terminal: the signal stays ignored.
    for (const int signal : kHandedOn)
      if (signal != SIGHUP || !is_ignored(signal)) sigaddset(&waited_, signal);
    // Where it was ignored, children would leave no status to wait for.
    struct sigaction kept {};
    kept.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &kept, &on_child_before_);
    sigprocmask(SIG_BLOCK, &waited_, &before_);
  }
  ~Launch() {
    sigprocmask(SIG_SETMASK, &before_, nullptr);
    sigaction(SIGCHLD, &on_child_before_, nullptr);
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  // The code of the whole.
  int run() {
    start();
    while (num_running_ > 0) {
      const timespec tick{0, 200'000'000};
      const int signal = sigtimedwait(&waited_, nullptr, &tick);
      if (std::find(std::begin(kHandedOn), std::end(kHandedOn), signal) != std::end(kHandedOn)) {
        was_asked_ = true;
        send(signal);
      }
      collect();
      if (first_failed_ >= 0) kill_stopped();
      if (first_failed_ >= 0 && num_running_ > 0 && Clock::now() > until_) {
        fmt::print(stderr, "pleat launch: {} other ranks have not ended by themselves: {}\n", num_running_,
                   hard_ ? "killed" : "asked to stop");
        send(hard_ ? SIGKILL : SIGTERM);
        hard_ = true;
        until_ = Clock::now() + grace();
      }
    }
    return first_failed_ < 0 ? 0 : code_of(ranks_[static_cast<size_t>(first_failed_)].status);
  }

  bool was_asked() const { return was_asked_; }

 private:
  Clock::duration grace() const {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.grace_seconds));
  }

  static int code_of(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : static_cast<int>(base::ExitCode::Retry);
  }

  void start() {
    tcp::Socket listening = tcp::listen_at(0);
    const std::string port = std::to_string(tcp::port_of(listening)), token = random_token();
    const Said said;
    const pid_t parent = getpid();
    const std::string size = std::to_string(options_.num_ranks);
    for (int r = 0; r < options_.num_ranks; ++r) {
      const std::string rank = std::to_string(r);
      std::vector<std::pair<std::string, std::string>> values = {
          {"RANK", rank},
          {"WORLD_SIZE", size},
          {"LOCAL_RANK", rank},
          {"LOCAL_WORLD_SIZE", size},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", port},
          {kTokenVariable, token},
          {kSaidVariable, said.descriptor() < 0 ? "" : std::to_string(said.descriptor())},
          {kListeningVariable, r == 0 ? std::to_string(listening.descriptor()) : ""}};
      // Of the launcher that may have started this process: its ranks are others.
      for (const std::string& name : variables_of_other_launchers()) values.emplace_back(name, "");
      std::vector<std::string> environment = environment_with(values);
      std::vector<std::string> words = command_;
      const std::vector<char*> arguments = pointers(words), variables = pointers(environment);
      const pid_t process = fork();
      if (process < 0) {
        send(SIGKILL);
        base::fail_with(base::ExitCode::Retry, "no process for rank {}: {}", r, std::strerror(errno));
      }
      if (process == 0) {
        // A group of its own: what a terminal sends reaches this process, which hands it on once.
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent) _exit(static_cast<int>(base::ExitCode::Retry));
        if (r == 0) fcntl(listening.descriptor(), F_SETFD, 0);
        if (said.descriptor() >= 0) fcntl(said.descriptor(), F_SETFD, 0);
        sigprocmask(SIG_SETMASK, &before_, nullptr);
        execve(arguments[0], arguments.data(), variables.data());
        _exit(127);
      }
      ranks_.push_back({process, 0, false});
      ++num_running_;
    }
  }

  void send(int signal) {
    for (const Rank& rank : ranks_)
      if (rank.process > 0) {
        kill(rank.process, signal);
        kill(rank.process, SIGCONT);  // a stopped one hears nothing else
      }
  }

  // Once another has failed: nobody else will let them go on.
  void kill_stopped() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].process < 0 || !ranks_[r].stopped) continue;
      ranks_[r].stopped = false;
      fmt::print(stderr, "pleat launch: rank {} was stopped: killed\n", r);
      kill(ranks_[r].process, SIGKILL);
    }
  }

  void collect() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      int status = 0;
      if (rank.process < 0 ||
          waitpid(rank.process, &status, WNOHANG | WUNTRACED | WCONTINUED) != rank.process)
        continue;
      rank.stopped = WIFSTOPPED(status);
      if (WIFSTOPPED(status) || WIFCONTINUED(status)) continue;
      rank.status = status;
      rank.process = -1;
      --num_running_;
      if (rank.status == 0 || first_failed_ >= 0) continue;
      first_failed_ = static_cast<int>(r);
      until_ = Clock::now() + grace();
      const int code = WIFEXITED(rank.status) ? WEXITSTATUS(rank.status) : 0;
      if (was_asked_ && code == static_cast<int>(base::ExitCode::Retry)) continue;
      fmt::print(stderr, "pleat launch: rank {} {}\n", r,
                 WIFEXITED(rank.status) ? fmt::format("ended with code {}", code)
                                        : fmt::format("was killed by signal {} ({})", WTERMSIG(rank.status),
                                                      strsignal(WTERMSIG(rank.status))));
    }
  }

  const LaunchOptions& options_;
  std::vector<std::string> command_;
  sigset_t waited_, before_;
  struct sigaction on_child_before_;
  std::vector<Rank> ranks_;
  int num_running_ = 0, first_failed_ = -1;
  bool was_asked_ = false, hard_ = false;
  Clock::time_point until_;
};

}  // namespace

int launch_ranks(const std::vector<std::string>& command, const LaunchOptions& options) {
  for (int restart = 0;; ++restart) {
    Launch launch(command, options);
    const int code = launch.run();
    if (code != static_cast<int>(base::ExitCode::Retry) || launch.was_asked() ||
        restart == options.num_restarts)
      return code;
    fmt::print(stderr, "pleat launch: starting all ranks again ({} of {})\n", restart + 1,
               options.num_restarts);
  }
}

}  // namespace pleat::comm
