// Messages of one call that are under way together, whatever carries them between processes.
#pragma once

#include <cstddef>
#include <span>

namespace pleat::comm {

class Exchange {
 public:
  Exchange() = default;
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Peers are members of the group, this rank included. Between two members messages of one tag keep their order;
  // sizes must agree on both sides.
  virtual void send(std::span<const std::byte> data, int to, int tag) = 0;
  virtual void receive(std::span<std::byte> data, int from, int tag) = 0;
  // Until all are done: the memory is free then, also when it throws.
  virtual void wait() = 0;
};

}  // namespace pleat::comm
