// Logits as numbers, whatever type the model computes in.
#pragma once

#include <vector>

#include "interpret/run/executor.h"

namespace pleat::runtime {

// One row of those of the program's microbatch 0.
void read_logits(const interpret::Executor& executor, int64_t row, std::vector<double>& out);

}  // namespace pleat::runtime
