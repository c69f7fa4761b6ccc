#include "comm/nccl/library.h"

#include <chrono>
#include <thread>

#include "base/error.h"

namespace pleat::comm::nccl {

void require(ncclResult_t result, const std::string& what) {
  if (result != ncclSuccess)
    base::fail_with(base::ExitCode::Retry, "{}: {}", what, ncclGetErrorString(result));
}

ncclResult_t settled(ncclComm_t comm, ncclResult_t begun) {
  // Short at first: a call that was nearly done should not wait a millisecond.
  auto pause = std::chrono::microseconds(10);
  while (begun == ncclInProgress) {
    std::this_thread::sleep_for(pause);
    if (pause < std::chrono::milliseconds(1)) pause *= 2;
    ncclResult_t now = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &now);
    begun = asked == ncclSuccess ? now : asked;
  }
  return begun;
}

int64_t free_device_bytes() {
  size_t free = 0, total = 0;
  if (const cudaError_t error = cudaMemGetInfo(&free, &total); error != cudaSuccess)
    base::fail_with(base::ExitCode::Hardware, "asking how much memory the GPU has left: {}",
                    cudaGetErrorString(error));
  return static_cast<int64_t>(free);
}

}  // namespace pleat::comm::nccl
