#include <cuda_runtime.h>

#include "base/error.h"
#include "comm/nccl/cuda/marks.h"

namespace pleat::comm::nccl {
namespace {

__global__ void pass(uint64_t* count, volatile uint64_t* seen) {
  const uint64_t now = *count + 1;
  *count = now;
  *seen = now;
  __threadfence_system();
}

void check_mark(cudaError_t error, const std::string& what) {
  if (error != cudaSuccess)
    base::fail_with(base::ExitCode::Hardware, "{}: {}", what, cudaGetErrorString(error));
}

}  // namespace

Marks::Marks(const std::string& what) {
  void* memory = nullptr;
  check_mark(cudaMalloc(&memory, 2 * sizeof(uint64_t)), what);
  count_ = static_cast<uint64_t*>(memory);
  token_ = count_ + 1;
  check_mark(cudaMemset(memory, 0, 2 * sizeof(uint64_t)), what);
  check_mark(cudaHostAlloc(&memory, sizeof(uint64_t), cudaHostAllocMapped), what);
  seen_ = static_cast<volatile uint64_t*>(memory);
  *seen_ = 0;
}

Marks::~Marks() {
  (void)cudaFree(count_);
  (void)cudaFreeHost(const_cast<uint64_t*>(seen_));
}

void Marks::put(CUstream_st* stream, const std::string& what) {
  pass<<<1, 1, 0, stream>>>(count_, seen_);
  check_mark(cudaGetLastError(), what);
}

uint64_t Marks::num_passed() const { return *seen_; }

}  // namespace pleat::comm::nccl
