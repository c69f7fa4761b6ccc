#include "comm/local/mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

namespace pleat::comm::local {

void Mailbox::post(Message& message) {
  const std::lock_guard lock(mutex_);
  posted_.push_back(&message);
  changed_.notify_all();
}

bool Mailbox::wait_taken(Message& message) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return message.state == Message::State::Done || (called_off_ && message.state == Message::State::Posted);
  });
  if (message.state == Message::State::Done) return true;
  posted_.remove(&message);
  return false;
}

bool Mailbox::receive(int from, int tag, std::span<std::byte> out, std::string_view stage, Mover& mover,
                      std::string& fault) {
  std::unique_lock lock(mutex_);
  auto found = posted_.end();
  changed_.wait(lock, [&] {
    found = std::find_if(posted_.begin(), posted_.end(),
                         [&](const Message* m) { return m->from == from && m->tag == tag; });
    return found != posted_.end() || called_off_;
  });
  if (found == posted_.end()) return false;
  Message& message = **found;
  posted_.erase(found);
  message.state = Message::State::Taken;
  if (message.data.size() != out.size()) {
    fault = fmt::format("{} bytes sent for stage '{}', {} bytes awaited for stage '{}' (tag {})",
                        message.data.size(), message.stage, out.size(), stage, tag);
    message.fault = fault;
  } else if (!out.empty()) {
    lock.unlock();
    std::exception_ptr failure;
    try {
      mover.copy(out.data(), message.data.data(), static_cast<int64_t>(out.size()));
      mover.finish();
    } catch (const std::exception& e) {
      failure = std::current_exception();
      fault = fmt::format("the receiver could not copy it: {}", e.what());
    }
    lock.lock();
    message.fault = fault;
    if (failure) {
      finish(message);
      std::rethrow_exception(failure);
    }
  }
  finish(message);
  return true;
}

void Mailbox::finish(Message& message) {
  message.state = Message::State::Done;
  changed_.notify_all();
}

void Mailbox::call_off() {
  const std::lock_guard lock(mutex_);
  called_off_ = true;
  changed_.notify_all();
}

}  // namespace pleat::comm::local
