#include "base/alloc_watch.h"
#include "device/cuda/check.h"
#include "device/cuda/chosen.h"
#include "device/cuda/cuda.h"

namespace pleat::device::cuda {
namespace {

std::string gib(int64_t bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / 1073741824.0);
}

}  // namespace

Memory::Memory(int64_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  base::note_allocation(bytes);
  enter_device();
  void* at = nullptr;
  const cudaError_t code = cudaMalloc(&at, static_cast<size_t>(bytes));
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    size_t free = 0, total = 0;
    (void)cudaMemGetInfo(&free, &total);
    base::fail_with(base::ExitCode::Hardware,
                    "the GPU has {} free of {}; {} are needed. `pleat plan` shows where they go; smaller "
                    "micro-batches or [recompute] need less",
                    gib(static_cast<int64_t>(free)), gib(static_cast<int64_t>(total)), gib(bytes));
  }
  PLEAT_CUDA(code);
  data_ = static_cast<std::byte*>(at);
}

Memory::~Memory() { (void)cudaFree(data_); }

}  // namespace pleat::device::cuda
