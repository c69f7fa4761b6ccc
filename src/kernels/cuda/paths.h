// Where a kernel has several ways to compute the same, which it took: noted while programs are bound, printed
// by a run (kernels/cuda/choices.h).
#pragma once

#include <string>
#include <vector>

namespace pleat::kernels::cuda {

void note_path(std::string line);
// Each distinct line once, in order of first use in this process.
std::vector<std::string> paths_taken();

}  // namespace pleat::kernels::cuda
