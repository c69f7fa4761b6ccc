#pragma once

#include <CLI/CLI.hpp>

#include "command.h"

namespace pleat::apps {

// Adds `layer` below `pleat bench`.
void add_bench_layer(CLI::App& bench, Action& chosen);

}  // namespace pleat::apps
