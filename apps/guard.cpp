#include "guard.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>
#include <system_error>

#include "base/error.h"
#include "base/standard_streams.h"
#include "comm/process/said.h"

namespace pleat::apps {
namespace {

// The ends of all commands: what went wrong, said once, and the code for it.
int with_errors_said(const std::function<int()>& body, int& output_error) {
  try {
    return body();
  } catch (const base::Error& e) {
    say_error(e.what());
    return static_cast<int>(e.code());
  } catch (const std::filesystem::filesystem_error& e) {
    say_error(e.what());
    return static_cast<int>(base::ExitCode::Storage);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "pleat: out of memory\n");
    return static_cast<int>(base::ExitCode::Internal);
  } catch (const std::system_error& e) {
    // The library that prints throws when standard output takes no more; with_output_checked says so.
    if (std::ferror(stdout)) {
      output_error = e.code().value();
      return static_cast<int>(base::ExitCode::Done);
    }
    say_error(e.what());
    return static_cast<int>(base::ExitCode::Internal);
  } catch (const std::exception& e) {
    say_error(fmt::format("unexpected error: {}", e.what()));
    return static_cast<int>(base::ExitCode::Internal);
  }
}

// A result that did not arrive is no success.
int with_output_checked(int code, int error) {
  const base::OutputState output = base::finish_standard_output(error);
  if (output.fault.empty()) return code;
  if (!output.reader_left) fmt::print(stderr, "pleat: cannot write to standard output: {}\n", output.fault);
  return code == 0 ? static_cast<int>(base::ExitCode::Storage) : code;
}

// Libraries expect the usual eight MiB of stack. Where a limit gives less, the command and its threads run on
// stacks of their own.
int with_enough_stack(const std::function<int()>& body) {
  constexpr size_t kStackBytes = size_t{8} << 20;
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kStackBytes) return body();
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, kStackBytes);
  ::pthread_setattr_default_np(&attributes);
  struct Call {
    const std::function<int()>& body;
    int code = 0;
  } call{body};
  pthread_t thread;
  const int failed = ::pthread_create(
      &thread, &attributes,
      [](void* arg) -> void* {
        Call& c = *static_cast<Call*>(arg);
        c.code = c.body();
        return nullptr;
      },
      &call);
  if (failed) {
    fmt::print(stderr,
               "pleat: the limit on the stack is {} KiB (ulimit -s), and no thread with {} KiB starts: {}\n",
               limit.rlim_cur >> 10, kStackBytes >> 10, std::strerror(failed));
    return static_cast<int>(base::ExitCode::Internal);
  }
  ::pthread_join(thread, nullptr);
  return call.code;
}

}  // namespace

void say_error(const std::string& text) {
  // Or, where both go to one file, it would stand in the middle of what was printed before.
  std::fflush(stdout);
  fmt::print(stderr, "pleat: {}\n", comm::said_once(text));
}

int guarded(const std::function<int()>& command) {
  base::prepare_standard_streams();
  return with_enough_stack([&] {
    int output_error = 0;
    const int code = with_errors_said(command, output_error);
    return with_output_checked(code, output_error);
  });
}

}  // namespace pleat::apps
