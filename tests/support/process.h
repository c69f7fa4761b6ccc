// The built binary as a child process. A child that outlives its test would keep writing, so its destructor kills it.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "support/files.h"

namespace pleat::testing {

struct Ended {
  int code = -1;    // exit code; -1 when a signal ended the process
  int signal = 0;   // that signal
  std::string out;  // standard output
  std::string err;
  int64_t peak_bytes = 0;  // most memory it had resident
};

// `pleat ARGUMENTS...` (or another program) with its output in files below `folder`.
class PleatProcess {
 public:
  PleatProcess(const std::string& folder, const std::vector<std::string>& arguments,
               const std::string& program = PLEAT_BINARY)
      : out_(folder + "/stdout.txt"), err_(folder + "/stderr.txt") {
    // Built before the fork: a child of a threaded process may not allocate.
    std::vector<std::string> words = {program};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const int out = ::open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    const int err = ::open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    PLEAT_CHECK(out >= 0 && err >= 0, "cannot write below {}", folder);
    pid_ = ::fork();
    PLEAT_CHECK(pid_ >= 0, "cannot fork");
    if (pid_ == 0) {
      ::dup2(out, STDOUT_FILENO);
      ::dup2(err, STDERR_FILENO);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(out);
    ::close(err);
  }
  ~PleatProcess() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  PleatProcess(const PleatProcess&) = delete;
  PleatProcess& operator=(const PleatProcess&) = delete;

  // Nothing happens once it has ended: kill of -1 would reach every process there is.
  void send(int signal) const {
    if (pid_ > 0) ::kill(pid_, signal);
  }

  bool running() {
    int status = 0;
    rusage used{};
    if (pid_ >= 0 && ::wait4(pid_, &status, WNOHANG, &used) == pid_) note(status, used);
    return pid_ >= 0;
  }

  pid_t id() const { return pid_; }

  // Whether the process handles `signal` itself.
  bool catches(int signal) const {
    const std::string status = read_file(fmt::format("/proc/{}/status", pid_));
    const size_t at = status.find("SigCgt:");
    if (at == std::string::npos) return false;
    return std::stoull(status.substr(at + 7), nullptr, 16) >> (signal - 1) & 1;
  }

  Ended wait() {
    int status = 0;
    rusage used{};
    if (pid_ >= 0 && ::wait4(pid_, &status, 0, &used) == pid_) note(status, used);
    ended_.out = read_file(out_);
    ended_.err = read_file(err_);
    return ended_;
  }

 private:
  void note(int status, const rusage& used) {
    ended_.peak_bytes = static_cast<int64_t>(used.ru_maxrss) * 1024;
    if (WIFEXITED(status)) ended_.code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) ended_.signal = WTERMSIG(status);
    pid_ = -1;
  }

  std::string out_, err_;
  pid_t pid_ = -1;
  Ended ended_;
};

inline Ended run_pleat(const std::string& folder, const std::vector<std::string>& arguments) {
  return PleatProcess(folder, arguments).wait();
}

// A line for the shell, for what only it can do to a process: limits, closed and full streams. `pleat` is the
// binary there.
inline Ended run_shell(const std::string& folder, const std::string& line) {
  return PleatProcess(folder, {"-c", fmt::format("pleat() {{ '{}' \"$@\"; }}; {}", PLEAT_BINARY, line)},
                      "/bin/bash")
      .wait();
}

}  // namespace pleat::testing
