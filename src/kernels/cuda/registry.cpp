#include <fmt/format.h>

#include "kernels/cuda/bind.h"
#include "kernels/cuda/choices.h"
#include "kernels/cuda/paths.h"

namespace pleat::kernels {

CudaPrepare find_cuda_kernel(program::KernelKind kind, program::Phase phase) {
  for (auto rows : {
#define PLEAT_TABLE(name) name##_cuda_bindings(),
#include "kernels/tables.def"
       })
    for (const CudaBinding& row : rows)
      if (row.kind == kind && row.phase == phase) return row.prepare;
  return nullptr;
}

std::vector<std::string> cuda_choices() {
  std::vector<std::string> out;
  for (const MatmulChoice& c : matmul_choices())
    out.push_back(
        fmt::format("{} {}, sums in f32: cuBLASLt, {}", c.what, text_of(c.key),
                    c.tflops > 0 ? fmt::format("{:.0f} TFLOP/s when chosen", c.tflops) : "as it recommends"));
  for (std::string& line : cuda::paths_taken()) out.push_back(std::move(line));
  return out;
}

}  // namespace pleat::kernels
