// Which way attention takes on a GPU: cuDNN or the project's own kernels. A run prints it; tests assert it.
#pragma once

#include <string>
#include <vector>

#include "device/cuda/cuda.h"
#include "kernels/invocation.h"

namespace pleat::kernels {

// "cudnn", or "own: " and the reason. Builds (and keeps) the plan, as preparing the kernel does.
std::string attention_path(const Invocation& call, program::Phase phase, device::cuda::Lane& lane);

// One line for each distinct case prepared so far, in order of first use: phase, shape and path. Empty in a
// build without CUDA.
std::vector<std::string> attention_paths_taken();

}  // namespace pleat::kernels
