#include <cublasLt.h>
#include <cudnn.h>
#include <nvtx3/nvToolsExt.h>

#include "device/cuda/check.h"
#include "device/cuda/chosen.h"
#include "device/cuda/context.h"
#include "device/cuda/cuda.h"

namespace pleat::device::cuda {

bool built_in() { return true; }

int num_devices(std::string* why) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) {
    (void)cudaGetLastError();
    if (why) *why = cudaGetErrorString(code);
    return 0;
  }
  if (count == 0 && why) *why = "the driver lists none";
  return count;
}

Facts facts() {
  enter_device();
  cudaDeviceProp p{};
  PLEAT_CUDA(cudaGetDeviceProperties(&p, chosen_device()));
  Facts out;
  out.name = p.name;
  out.major = p.major, out.minor = p.minor, out.num_sms = p.multiProcessorCount;
  size_t free = 0, total = 0;
  PLEAT_CUDA(cudaMemGetInfo(&free, &total));
  out.memory_bytes = static_cast<int64_t>(total), out.free_bytes = static_cast<int64_t>(free);
  out.l2_bytes = p.l2CacheSize;
  PLEAT_CUDA(cudaDriverGetVersion(&out.driver));
  PLEAT_CUDA(cudaRuntimeGetVersion(&out.runtime));
  out.cublas = static_cast<int>(cublasLtGetVersion());
  out.cudnn = static_cast<int>(cudnnGetVersion());
  return out;
}

int64_t context_bytes() {
  static const int64_t bytes = [] {
    Lane lane;
    lane.cublas();
    lane.cudnn();
    const Facts now = facts();
    return now.memory_bytes - now.free_bytes;
  }();
  return bytes;
}

void push_range(const char* name) { nvtxRangePushA(name); }
void pop_range() { nvtxRangePop(); }

}  // namespace pleat::device::cuda
