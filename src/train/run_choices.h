// The algorithms of dense products a run on a GPU starts with, and where it leaves those it measured.
#pragma once

#include <functional>
#include <string>

#include "config/config.h"
#include "runtime/crew.h"
#include "train/start.h"

namespace pleat::train {

// Those of the checkpoint, else of an earlier start in the run's folder, else of the file the configuration names,
// else of earlier runs on this machine. Returns a line for the log; empty on the CPU. The leader reads; ranks that are
// processes get its table, threads share it.
std::string take_choices(const config::Config& config, const Start& start, runtime::Crew& crew);

// To bind a program is to measure what nobody knows, and ranks that measure apart choose differently: bits would depend on
// which rank computes what. So one rank of each pipeline stage binds first, stage by stage, and tells all others what it
// chose; then the rest. All ranks call it.
void bind_with_one_choice(runtime::Crew& crew, const std::function<void()>& bind);

// Into the run's folder and the machine's cache. Returns a line where the cache cannot be written.
std::string keep_choices(const config::Config& config);

}  // namespace pleat::train
