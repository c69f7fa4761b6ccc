// Which way attention takes on a GPU: cuDNN or the project's own kernels. Tests assert it.
#pragma once

#include <string>

#include "device/cuda/cuda.h"
#include "kernels/invocation.h"

namespace pleat::kernels {

// "cudnn", or "own: " and the reason. Builds (and keeps) the plan, as preparing the kernel does.
std::string attention_path(const Invocation& call, program::Phase phase, device::cuda::Lane& lane);

}  // namespace pleat::kernels
