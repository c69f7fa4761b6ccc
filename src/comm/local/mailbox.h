// Messages to one rank of one group, between threads: a rendezvous, with one copy straight from the sender's
// memory to the receiver's.
#pragma once

#include <condition_variable>
#include <list>
#include <mutex>
#include <string>

#include "comm/local/mover.h"

namespace pleat::comm::local {

struct Message {
  enum class State { Posted, Taken, Done };
  int from = 0, tag = 0;
  std::span<const std::byte> data;
  std::string_view stage;
  State state = State::Posted;
  std::string fault;  // set by the receiver: sizes do not agree, or it could not copy
};

// A function that returns false was called off; the caller's memory is then no longer used.
class Mailbox {
 public:
  void post(Message& message);
  // Until the receiver has copied `message`, which must be posted here.
  bool wait_taken(Message& message);
  // The oldest message of this sender and tag. On a size that does not agree, `fault` says so on both sides.
  // What `mover` throws is thrown here and a fault there.
  bool receive(int from, int tag, std::span<std::byte> out, std::string_view stage, Mover& mover,
               std::string& fault);
  void call_off();

 private:
  void finish(Message& message);  // its sender goes on; under the mutex

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Message*> posted_;
  bool called_off_ = false;
};

}  // namespace pleat::comm::local
