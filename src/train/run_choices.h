// The algorithms of dense products a run on a GPU starts with, and where it leaves those it measured.
#pragma once

#include <string>

#include "config/config.h"
#include "runtime/crew.h"
#include "train/start.h"

namespace pleat::train {

// Those of the checkpoint, else of an earlier start in the run's folder, else of the file the configuration names,
// else of earlier runs on this machine. Returns a line for the log; empty on the CPU.
// Ranks on a GPU are threads with one table, so one of them fills it before any of them asks it.
std::string take_choices(const config::Config& config, const Start& start, runtime::Crew& crew);

// Into the run's folder and the machine's cache. Returns a line where the cache cannot be written.
std::string keep_choices(const config::Config& config);

}  // namespace pleat::train
