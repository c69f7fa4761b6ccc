#include "base/standard_streams.h"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "base/terminal_text.h"

namespace pleat::base {
namespace {

int output_error = 0;  // errno of the first failed write to a terminal

bool write_fully(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(done));
  }
  return true;
}

// Never fails: a message nobody can read is no reason to stop.
ssize_t write_error_stream(void* filter, const char* bytes, size_t size) {
  static_cast<void>(
      write_fully(STDERR_FILENO, static_cast<TerminalFilter*>(filter)->push(std::string_view(bytes, size))));
  return static_cast<ssize_t>(size);
}

ssize_t write_terminal(void* filter, const char* bytes, size_t size) {
  if (write_fully(STDOUT_FILENO, static_cast<TerminalFilter*>(filter)->push(std::string_view(bytes, size))))
    return static_cast<ssize_t>(size);
  output_error = errno;
  return 0;
}

// The library's own stream when this fails: only the protection is missing then.
FILE* filtered(TerminalFilter* filter, cookie_write_function_t* write, FILE* otherwise, int buffering) {
  cookie_io_functions_t functions{};
  functions.write = write;
  FILE* stream = ::fopencookie(filter, "w", functions);
  if (!stream) return otherwise;
  std::setvbuf(stream, nullptr, buffering, BUFSIZ);
  return stream;
}

// The wrong direction for 0 and 1, so that using them is an error like that of a closed one.
void take_closed_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    const int opened = ::open("/dev/null", descriptor == STDOUT_FILENO ? O_RDONLY : O_WRONLY);
    if (opened >= 0 && opened != descriptor)
      ::close(opened);  // the lowest free number is the one that is taken
  }
}

}  // namespace

void prepare_standard_streams() {
  take_closed_descriptors();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  // Never destroyed: the streams are written to until the process is gone.
  static TerminalFilter* const error_filter = new TerminalFilter;
  static TerminalFilter* const output_filter = new TerminalFilter;
  // glibc: the three streams are variables.
  stderr = filtered(error_filter, write_error_stream, stderr, _IONBF);
  if (::isatty(STDOUT_FILENO)) stdout = filtered(output_filter, write_terminal, stdout, _IOLBF);
}

OutputState finish_standard_output(int error) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (error == 0) error = output_error;
  if (error == 0 && !flushed) error = errno;
  std::cout.flush();
  if (flushed && !std::ferror(stdout) && std::cout.good()) return {};
  OutputState out;
  out.reader_left = error == EPIPE;
  out.fault = error ? std::strerror(error) : "a write failed";
  return out;
}

void write_status(std::string_view bytes) { static_cast<void>(write_fully(STDERR_FILENO, bytes)); }

}  // namespace pleat::base
