// What cuDNN asks for is planned before there is a GPU to ask: the formula holds over many shapes.
#include <gtest/gtest.h>

#include "cuda/cuda_support.h"
#include "device/cuda/cuda.h"
#include "kernels/attention/attention_scratch.h"

namespace pleat::kernels::attention {
namespace {

struct Widths {
  int heads, kv_heads, d, dv;
};

TEST(CudaAttention, WorkspacesOfCudnnArePlanned) {
  PLEAT_NEEDS_GPU();
  device::cuda::Lane lane;
  for (const Widths w : {Widths{4, 2, 128, 128},
                         {8, 1, 64, 64},
                         {8, 8, 64, 64},
                         {4, 4, 192, 128},
                         {32, 4, 128, 128},
                         {16, 16, 128, 128},
                         {64, 8, 64, 64},
                         {16, 4, 128, 128},
                         {16, 1, 64, 64},
                         {4, 2, 40, 24}})
    for (const auto& [rows, seq_len] :
         {std::pair{1024, 512}, {514, 257}, {1024, 1024}, {8192, 4096}, {16384, 2048}, {4096, 128}})
      for (const int form : {0, 1, 2, 3, 4}) {  // forward, documents; backward, of documents, deterministic
        CudnnCase c{{rows, w.heads, w.kv_heads, w.d, w.dv, 0, 0.125}, seq_len, 0, form >= 2, form == 4};
        if (form == 1 || form == 3) c.max_documents = max_documents(rows, seq_len);
        if (!why_own(c, tensor::Dtype::BF16).empty()) continue;
        std::string why;
        const auto plan = cudnn_attention(c, lane.cudnn(), &why);
        if (!plan) continue;
        const int64_t planned = c.backward ? cudnn_backward_bytes(c) : cudnn_forward_bytes(c);
        const auto what = fmt::format("form {} rows {} seq {} heads {}/{} width {}/{} documents {}", form,
                                      rows, seq_len, w.heads, w.kv_heads, w.d, w.dv, c.max_documents);
        if (std::getenv("PLEAT_SHOW"))
          fmt::print("ASK {} : {} planned {}\n", what, plan->workspace_bytes(), planned);
        EXPECT_LE(plan->workspace_bytes(), planned) << what;
      }
}

}  // namespace
}  // namespace pleat::kernels::attention
