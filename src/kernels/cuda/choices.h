// What the GPU really runs: which library or kernel, and in which precision, for each class of product bound
// so far; and the algorithms of dense products, which a run keeps and a resume gives back. A build without
// CUDA has none.
#pragma once

#include <string>
#include <vector>

#include "kernels/linear/matmul_choice.h"

namespace pleat::kernels {

// A line each.
std::vector<std::string> cuda_choices();

// What this process knows, by ascending key.
std::vector<MatmulChoice> matmul_choices();
// From now on the process knows these and no others: a product bound later takes its algorithm from here, and
// is measured only where there is none. Choices must be of this machine.
void use_matmul_choices(const std::vector<MatmulChoice>& choices);
// Products measured so far in this process.
int64_t num_matmuls_measured();

}  // namespace pleat::kernels
