// Linked in place of registry.cpp and the *_cuda.cu files when the build has no CUDA.
#include "base/error.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/choices.h"

namespace pleat::kernels {

CudaPrepare find_cuda_kernel(program::KernelKind, program::Phase) { return nullptr; }
std::vector<std::string> cuda_choices() { return {}; }
std::vector<MatmulChoice> matmul_choices() { return {}; }
void use_matmul_choices(const std::vector<MatmulChoice>& choices) {
  PLEAT_CHECK(choices.empty(), "algorithms of a GPU in a build without CUDA");
}
int64_t num_matmuls_measured() { return 0; }

}  // namespace pleat::kernels
