// What the files of this folder share: results of the library as errors, and waiting for what it began.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <string>

namespace pleat::comm::nccl {

// Throws (Retry) unless it is a success; `what` was being done.
void require(ncclResult_t result, const std::string& what);

// `begun`, the result of a call on `comm`, may say that it is in progress: asks until it is not. Returns the final one.
ncclResult_t settled(ncclComm_t comm, ncclResult_t begun);

int64_t free_device_bytes();

}  // namespace pleat::comm::nccl
