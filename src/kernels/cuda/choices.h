// What the GPU really runs: which library or kernel, and in which precision, for each class of product bound
// so far.
#pragma once

#include <string>
#include <vector>

namespace pleat::kernels {

// A line each; empty in a build without CUDA.
std::vector<std::string> cuda_choices();

}  // namespace pleat::kernels
