// Staging of a GPU (checkpoint/staged_memory.h): two pinned buffers, each with a stream of its own.
#pragma once

#include "checkpoint/staged_memory.h"
#include "device/cuda/cuda.h"
#include "interpret/run/cuda_executor.h"

namespace pleat::runtime {

class CudaCarrier final : public checkpoint::Carrier {
 public:
  // Between runs: what is on the machine's own lanes must be done. The machine outlives this; `bytes`: of both buffers.
  CudaCarrier(interpret::CudaMachine& machine, int64_t bytes);
  ~CudaCarrier() override;
  std::span<std::byte> buffer(int index) override;
  void fetch(int buffer, int64_t begin, int64_t count) override;
  void send(int buffer, int64_t begin, int64_t count) override;
  void wait(int buffer) override;
  void zero(int64_t begin, int64_t count) override;

 private:
  interpret::CudaMachine& machine_;
  device::cuda::Pinned pinned_;
  device::cuda::Lane lanes_[kBuffers];
};

}  // namespace pleat::runtime
