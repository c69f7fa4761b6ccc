// Stream sockets with deadlines: none of these calls waits for ever.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

namespace pleat::comm::tcp {

using Clock = std::chrono::steady_clock;

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
// Until somebody listens there. Throws (Retry) at the deadline, with the last reason.
Socket connect_to(const std::string& address, int port, Clock::time_point deadline);
// Whether the descriptor is a socket that listens.
bool is_listening(int descriptor);
// The descriptor of a socket that listens already, from here on like one of listen_at.
Socket take_listening(int descriptor);
// A connection that waits, or none; then `why` says what kept it from being accepted, "" if nobody waits. Neither blocks
// later (the sockets do not).
Socket accept_from(const Socket& listening, std::string& why);
// The address the other side has, as digits.
std::string address_of_peer(const Socket& socket);

// Whether all bytes went or came before the deadline; `why` says what kept them.
bool write_all(const Socket& socket, std::span<const std::byte> bytes, Clock::time_point deadline,
               std::string& why);
bool read_all(const Socket& socket, std::span<std::byte> bytes, Clock::time_point deadline, std::string& why);

// Until the descriptor can be written or read (events of poll), or the deadline.
bool wait_for(int descriptor, short events, Clock::time_point deadline);

}  // namespace pleat::comm::tcp
