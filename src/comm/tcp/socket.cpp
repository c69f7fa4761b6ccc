#include "comm/tcp/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "base/error.h"

namespace pleat::comm::tcp {
namespace {

// Between two questions whether a wait is called off.
constexpr int64_t kAskAgainMs = 200;

void prepare(int descriptor) {
  const int on = 1;
  (void)setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  (void)setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  const int flags = fcntl(descriptor, F_GETFL, 0);
  (void)fcntl(descriptor, F_SETFL, flags | O_NONBLOCK);
}

std::string words() {
  const int error = errno;
  rlimit limit{};
  if (error == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    return fmt::format("too many open files (ulimit -n {})", limit.rlim_cur);
  return std::strerror(error);
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    std::swap(descriptor_, other.descriptor_);
  }
  return *this;
}

void Socket::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

bool wait_for(int descriptor, short events, const Until& until) {
  const int64_t longest = until.called_off ? kAskAgainMs : 60'000;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until.deadline - Clock::now()).count();
    pollfd one{descriptor, events, 0};
    const int ready = ::poll(&one, 1, static_cast<int>(std::clamp<int64_t>(left, 0, longest)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // the call that follows says what is wrong
    if (left <= 0 || until.is_called_off()) return false;
  }
}

Socket listen_at(int port) {
  // One socket for both families, where the system has the newer one.
  Socket socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool both = static_cast<bool>(socket);
  if (!both) socket = Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) base::fail_with(base::ExitCode::Retry, "no socket: {}", words());
  const int on = 1, off = 0;
  (void)setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  int bound = -1;
  if (both) {
    (void)setsockopt(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_in6 at{};
    at.sin6_family = AF_INET6;
    at.sin6_port = htons(static_cast<uint16_t>(port));
    bound = ::bind(socket.descriptor(), reinterpret_cast<const sockaddr*>(&at), sizeof at);
  } else {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<uint16_t>(port));
    bound = ::bind(socket.descriptor(), reinterpret_cast<const sockaddr*>(&at), sizeof at);
  }
  if (bound != 0 || ::listen(socket.descriptor(), SOMAXCONN) != 0)
    base::fail_with(base::ExitCode::Retry,
                    "cannot listen on port {}: {}; another job may have it: choose another MASTER_PORT", port,
                    words());
  prepare(socket.descriptor());
  return socket;
}

int port_of(const Socket& listening) {
  sockaddr_storage at{};
  socklen_t length = sizeof at;
  if (::getsockname(listening.descriptor(), reinterpret_cast<sockaddr*>(&at), &length) != 0)
    base::fail_with(base::ExitCode::Retry, "a socket without a port: {}", words());
  return ntohs(at.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(at).sin6_port
                                        : reinterpret_cast<const sockaddr_in&>(at).sin_port);
}

Socket connect_to(const std::string& address, int port, const Until& until) {
  std::string why = "no answer";
  for (;;) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const int code = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
    if (code != 0) why = gai_strerror(code);
    for (const addrinfo* a = code == 0 ? found : nullptr; a != nullptr; a = a->ai_next) {
      Socket socket(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
      if (!socket) {
        why = words();
        continue;
      }
      prepare(socket.descriptor());
      int error = ::connect(socket.descriptor(), a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
      if (error == EINPROGRESS) {
        const Until soon(std::min(until.deadline, Clock::now() + std::chrono::seconds(5)), until.called_off);
        socklen_t length = sizeof error;
        if (!wait_for(socket.descriptor(), POLLOUT, soon))
          error = ETIMEDOUT;
        else
          (void)getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &length);
      }
      if (error == 0) return socket;
      why = std::strerror(error);
    }
    if (until.is_over()) base::fail_with(base::ExitCode::Retry, "{}:{}: {}", address, port, why);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

bool is_listening(int descriptor) {
  int listens = 0;
  socklen_t length = sizeof listens;
  return ::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0;
}

Socket take_listening(int descriptor) {
  prepare(descriptor);
  return Socket(descriptor);
}

Socket accept_from(const Socket& listening, std::string& why) {
  Socket socket(::accept4(listening.descriptor(), nullptr, nullptr, SOCK_CLOEXEC));
  why.clear();
  if (socket) {
    prepare(socket.descriptor());
    return socket;
  }
  // Of these the accepting side itself has no more, or it cannot accept at all; the others are about one connection that
  // went away before it was taken.
  for (const int own : {EMFILE, ENFILE, ENOBUFS, ENOMEM, EBADF, EINVAL, ENOTSOCK, EOPNOTSUPP})
    if (errno == own) why = words();
  return socket;
}

std::string address_of_peer(const Socket& socket) {
  sockaddr_storage at{};
  socklen_t length = sizeof at;
  char text[NI_MAXHOST] = {};
  if (::getpeername(socket.descriptor(), reinterpret_cast<sockaddr*>(&at), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&at), length, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return "?";
  const std::string all = text;
  constexpr std::string_view kMapped = "::ffff:";  // the older family, seen through the newer
  return all.starts_with(kMapped) ? all.substr(kMapped.size()) : all;
}

bool write_all(const Socket& socket, std::span<const std::byte> bytes, const Until& until, std::string& why) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
    } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
      why = words();
      return false;
    } else if (!wait_for(socket.descriptor(), POLLOUT, until)) {
      why = "it takes nothing";
      return false;
    }
  }
  return true;
}

bool read_all(const Socket& socket, std::span<std::byte> bytes, const Until& until, std::string& why) {
  while (!bytes.empty()) {
    const ssize_t n = ::recv(socket.descriptor(), bytes.data(), bytes.size(), 0);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
    } else if (n == 0) {
      why = "it closed the connection";
      return false;
    } else if (errno != EAGAIN && errno != EINTR) {
      why = words();
      return false;
    } else if (!wait_for(socket.descriptor(), POLLIN, until)) {
      why = "no answer";
      return false;
    }
  }
  return true;
}

}  // namespace pleat::comm::tcp
