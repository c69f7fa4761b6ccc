#include "comm/tcp/outbox.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

namespace pleat::comm::tcp {
namespace {

// Between two questions whether the rank was called off.
constexpr auto kLookAgain = std::chrono::milliseconds(100);

}  // namespace

void Outbox::take_said() {
  const std::lock_guard lock(saying_);
  unsent_.insert(unsent_.end(), said_.begin(), said_.end());
  said_.clear();
}

Outbox::Result Outbox::write(const Socket& socket, const Header& header, std::span<const std::byte> data,
                             const std::atomic<bool>& called_off) {
  const std::lock_guard lock(writing_);
  full_ = false;  // this thread sends the words
  take_said();
  const std::vector<std::byte> words = std::move(unsent_);
  unsent_.clear();
  std::span<const std::byte> rest[] = {words, std::as_bytes(std::span(&header, 1)), data};
  constexpr size_t kParts = std::size(rest);
  for (;;) {
    iovec parts[kParts];
    size_t num_parts = 0;
    for (const auto& part : rest)
      if (!part.empty()) parts[num_parts++] = {const_cast<std::byte*>(part.data()), part.size()};
    if (num_parts == 0) return Result::Written;
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = num_parts;
    const ssize_t n = ::sendmsg(socket.descriptor(), &message, MSG_NOSIGNAL);
    if (n >= 0) {
      auto left = static_cast<size_t>(n);
      for (auto& part : rest) {
        const size_t taken = std::min(left, part.size());
        part = part.subspan(taken);
        left -= taken;
      }
      continue;
    }
    if (errno != EAGAIN && errno != EINTR) return Result::Lost;
    if (called_off) return Result::CalledOff;
    (void)wait_for(socket.descriptor(), POLLOUT, Clock::now() + kLookAgain);
  }
}

bool Outbox::is_busy(const Socket& socket) {
  const std::unique_lock free(writing_, std::try_to_lock);
  return !free || !wait_for(socket.descriptor(), POLLOUT, Clock::now());
}

void Outbox::say(const Header& word) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(&word, 1));
  const std::lock_guard lock(saying_);
  said_.insert(said_.end(), bytes.begin(), bytes.end());
}

bool Outbox::flush(const Socket& socket) {
  for (;;) {
    std::unique_lock lock(writing_, std::try_to_lock);
    if (!lock) return false;  // who writes looks again afterwards
    take_said();
    while (!unsent_.empty()) {
      const ssize_t n = ::send(socket.descriptor(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return full_ = true;
      // A lost connection is seen by the reading thread.
      const size_t taken = n < 0 ? unsent_.size() : static_cast<size_t>(n);
      unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<std::ptrdiff_t>(taken));
    }
    full_ = false;
    lock.unlock();
    const std::lock_guard saying(saying_);
    if (said_.empty()) return false;
  }
}

}  // namespace pleat::comm::tcp
