// Stream sockets with deadlines: none of these calls waits for ever.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>

namespace pleat::comm::tcp {

using Clock = std::chrono::steady_clock;

// When a wait ends at the latest. It ends before where `called_off` says so, which is asked several times a second.
struct Until {
  Until(Clock::time_point at, std::function<bool()> asked = {})
      : deadline(at), called_off(std::move(asked)) {}
  bool is_called_off() const { return called_off && called_off(); }
  bool is_over() const { return Clock::now() >= deadline || is_called_off(); }

  Clock::time_point deadline;
  std::function<bool()> called_off;
};

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
  Socket& operator=(Socket&& other) noexcept;

  int descriptor() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }
  void close();
  // The descriptor becomes the caller's.
  int release() {
    const int mine = descriptor_;
    descriptor_ = -1;
    return mine;
  }

 private:
  int descriptor_ = -1;
};

// Port 0: any that is free. All addresses of this machine. Throws (Retry) when the port is taken.
Socket listen_at(int port);
int port_of(const Socket& listening);
// Until somebody listens there. Throws (Retry) when the wait is over, with the last reason.
Socket connect_to(const std::string& address, int port, const Until& until);
// Whether the descriptor is a socket that listens.
bool is_listening(int descriptor);
// The descriptor of a socket that listens already, from here on like one of listen_at.
Socket take_listening(int descriptor);
// A connection that waits, or none; then `why` says what kept it from being accepted, "" if nobody waits. Neither blocks
// later (the sockets do not).
Socket accept_from(const Socket& listening, std::string& why);
// The address the other side has, as digits.
std::string address_of_peer(const Socket& socket);

// Whether all bytes went or came before the wait was over; `why` says what kept them.
bool write_all(const Socket& socket, std::span<const std::byte> bytes, const Until& until, std::string& why);
bool read_all(const Socket& socket, std::span<std::byte> bytes, const Until& until, std::string& why);

// Until the descriptor can be written or read (events of poll); false: the wait was over before.
bool wait_for(int descriptor, short events, const Until& until);

}  // namespace pleat::comm::tcp
