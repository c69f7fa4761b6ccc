// Errors a user can act on. Every throw names what was got, what was needed, and where.
//
// Three kinds exist in the project: bad user input and failed I/O throw Error with the exit code the
// process should end with; a broken invariant stops the process (PLEAT_CHECK); a numerical stop is
// Error with ExitCode::Numerical.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace pleat::base {

// Documented in docs/formats.md; scripts and schedulers rely on them.
enum class ExitCode : int {
  Done = 0,
  BadInput = 65,
  Internal = 70,
  Storage = 74,
  Retry = 75,
  Hardware = 76,
  Numerical = 77,
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, std::string message) : std::runtime_error(std::move(message)), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// fail("expert count {} does not divide {}", a, b): bad input, exit code 65.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ExitCode::BadInput, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void fail_with(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// Prints the message with file and line to standard error and aborts.
[[noreturn]] void invariant_broken(const char* file, int line, const char* condition, const std::string& why);

}  // namespace pleat::base

// An invariant of the program itself, never of user input. Always on.
#define PLEAT_CHECK(condition, ...)                                                                   \
  do {                                                                                                \
    if (!(condition)) [[unlikely]]                                                                    \
      ::pleat::base::invariant_broken(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
