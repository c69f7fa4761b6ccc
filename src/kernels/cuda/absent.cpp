// Linked in place of registry.cpp and the *_cuda.cu files when the build has no CUDA.
#include "kernels/attention/attention_path.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/choices.h"

namespace pleat::kernels {

CudaPrepare find_cuda_kernel(program::KernelKind, program::Phase) { return nullptr; }
std::vector<std::string> cuda_choices() { return {}; }
std::vector<std::string> attention_paths_taken() { return {}; }

}  // namespace pleat::kernels
