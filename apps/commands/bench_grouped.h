#pragma once

#include <CLI/CLI.hpp>

#include "command.h"

namespace pleat::apps {

// Adds `grouped` below `pleat bench`.
void add_bench_grouped(CLI::App& bench, Action& chosen);

}  // namespace pleat::apps
