// sinkhorn.h on the GPU, with the same arithmetic: one grid that waits for all its blocks after every round.
#pragma once

#include "kernels/cuda/bind.h"

namespace pleat::kernels {

// Fills keys [T,E]. Uses the scratch of `call`, which is free again when the launch is done.
CudaLaunch prepare_sinkhorn(const float* logits, const uint8_t* valid, int64_t num_tokens,
                            int64_t num_experts, float* keys, const Invocation& call,
                            device::cuda::Lane& lane);

}  // namespace pleat::kernels
