#include "comm/nccl/memory_meter.h"

#include <algorithm>

#include "comm/nccl/library.h"

namespace pleat::comm::nccl {

void MemoryMeter::before(const Call& call) {
  const bool message = call.operation >= Operation::Send;
  if (seen_.emplace(call.operation, message ? call.peer : -1).second && free_before_ < 0)
    free_before_ = free_device_bytes();
}

void MemoryMeter::after() {
  if (free_before_ < 0) return;
  // Somebody else may have given memory back.
  taken_ += std::max<int64_t>(0, free_before_ - free_device_bytes());
  free_before_ = -1;
}

}  // namespace pleat::comm::nccl
