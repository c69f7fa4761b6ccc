#pragma once

#include <CLI/CLI.hpp>

#include "command.h"

namespace pleat::apps {

// Adds `kernels` below `pleat bench`.
void add_bench_kernels(CLI::App& bench, Action& chosen);

}  // namespace pleat::apps
