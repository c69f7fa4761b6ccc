// The algorithms of dense products this process knows (kernels/cuda/choices.h), for the kernel that asks.
#pragma once

#include "kernels/linear/matmul_choice.h"

namespace pleat::kernels::cuda {

// False, and `out` untouched, where there is none.
bool find_choice(const MatmulKey& key, MatmulChoice& out);
// After a product was bound without one; `measured`: its algorithm was the fastest of several.
void add_choice(const MatmulChoice& choice, bool measured);

}  // namespace pleat::kernels::cuda
