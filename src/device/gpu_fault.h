// Whether a GPU is one the kernels are made for.
#pragma once

#include <string>

#include "device/cuda/cuda.h"

namespace pleat::device {

// Why programs cannot run on this GPU; empty: they can.
std::string gpu_fault(const cuda::Facts& facts);

}  // namespace pleat::device
