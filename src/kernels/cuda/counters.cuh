// Integer counters in device memory that are zero whenever a launch begins, so that nothing clears them
// first: the kernel that raises them leaves them at zero. And the last block of a grid, which may use what
// all blocks left in memory: one launch does what would take two.
#pragma once

#include <cstdint>
#include <memory>

#include "device/cuda/cuda.h"

namespace pleat::kernels::cuda {

// A prepared launch holds them for as long as it lives. Launches of one lane follow each other, so that they
// need no more than one set each.
class Counters {
 public:
  Counters(device::cuda::Lane& lane, int64_t count)
      : memory_(std::make_shared<device::cuda::Memory>(count * 4)) {
    lane.fill(memory_->data(), 0, count * 4);
    lane.synchronize();  // other streams may replay what this lane enqueues
  }
  int* data() const { return reinterpret_cast<int*>(memory_->data()); }

 private:
  std::shared_ptr<device::cuda::Memory> memory_;
};

// Whether this block is the grid's last to come here; it then sees what all others wrote before (to be read
// with __ldcg). For grids of one dimension; all threads take part. `arrived` is zero again behind the last.
__device__ inline bool is_last_block(int* arrived) {
  __shared__ bool last;
  __syncthreads();  // the writes of all threads come before the fence
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(reinterpret_cast<unsigned*>(arrived), gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

}  // namespace pleat::kernels::cuda
