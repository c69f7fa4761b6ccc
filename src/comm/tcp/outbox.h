// The writing side of one connection: whole messages, and short words between them that never make their speaker wait.
//
// The reading thread answers what it reads. Were it to wait for a connection to take an answer, two ranks could wait so
// for each other. So words are kept until the connection takes them: whoever writes a message next sends them first,
// and where it is full the reading thread sends them once there is room.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "comm/tcp/socket.h"

namespace pleat::comm::tcp {

// In front of every message; of a word it is all there is.
struct Header {
  uint32_t kind = 0, tag = 0;
  uint64_t channel = 0, bytes = 0, number = 0;
};

class Outbox {
 public:
  enum class Result : uint8_t { Written, Lost, CalledOff };

  // Any thread but the reading one: waits for room, unless `called_off` becomes true.
  Result write(const Socket& socket, const Header& header, std::span<const std::byte> data,
               const std::atomic<bool>& called_off);
  // Whether somebody writes, or the connection has no room.
  bool is_busy(const Socket& socket);

  // Any thread; goes out with the next flush or message.
  void say(const Header& word);
  // Never waits. True: there was no room, and the reading thread shall do it again when there is.
  [[nodiscard]] bool flush(const Socket& socket);
  bool is_full() const { return full_; }

 private:
  void take_said();

  std::mutex writing_;
  std::vector<std::byte> unsent_;  // under writing_: words whose bytes come before any other's
  std::atomic<bool> full_{false};  // changed under writing_
  std::mutex saying_;
  std::vector<std::byte> said_;
};

}  // namespace pleat::comm::tcp
