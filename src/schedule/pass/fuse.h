// Two stages that read the same memory become one where the GPU has a kernel for both:
//
//   dgrad norm, wgrad norm   -> norm_back     dy and x are read once
//   dgrad rope, wgrad rope   -> rope_back     dout and qkv are read once
//
// Sums of a norm's weight gradient may be cut elsewhere than in the single kernels, so the pass is bounded,
// not exact.
#pragma once

#include "program/program.h"

namespace pleat::schedule {

program::Program fuse(program::Program program);

}  // namespace pleat::schedule
