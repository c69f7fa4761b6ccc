// The algorithms of dense products this process knows (kernels/cuda/choices.h), for the kernel that asks.
#pragma once

#include "kernels/linear/matmul_choice.h"

namespace pleat::kernels::cuda {

// False, and `out` untouched, where there is none.
bool find_choice(const MatmulKey& key, MatmulChoice& out);
// After a product was bound without one; `measured`: its algorithm was the fastest of several. Returns the
// one to use: ranks that are threads may measure the same product at once, and the first to end decides.
MatmulChoice add_choice(const MatmulChoice& choice, bool measured);

}  // namespace pleat::kernels::cuda
