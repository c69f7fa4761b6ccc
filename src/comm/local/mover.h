// How bytes get from one thread rank's memory to another's: by the host's processor, or by the GPU whose
// memory the ranks share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "comm/communicator.h"

namespace pleat::comm::local {

// Moves are only certain to be done when finish() has returned; until then neither side may be touched. Any
// thread; threads that share a mover may wait for each other's moves.
class Mover {
 public:
  virtual ~Mover() = default;
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // reduce_in_order (comm/reduce.h), with the same bits.
  virtual void reduce(std::span<const std::byte* const> ins, std::span<std::byte* const> outs, int64_t count,
                      tensor::Dtype dtype, Reduce reduce) = 0;
  virtual void finish() = 0;
};

std::unique_ptr<Mover> host_mover();
std::unique_ptr<Mover> device_mover();  // throws in a build without CUDA
inline std::unique_ptr<Mover> make_mover(Buffers buffers) {
  return buffers == Buffers::Device ? device_mover() : host_mover();
}

}  // namespace pleat::comm::local
