#include "device/gpu_fault.h"

#include <fmt/format.h>

namespace pleat::device {

std::string gpu_fault(const cuda::Facts& f) {
  if (f.major == 9 && f.minor == 0) return "";
  return fmt::format(
      "the GPU is {} with compute capability {}.{}; needed is 9.0 (Hopper: H100, H200, GH200), for which the "
      "kernels "
      "are made",
      f.name, f.major, f.minor);
}

}  // namespace pleat::device
