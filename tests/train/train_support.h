// Small models trained in memory, without data files: random tokens straight into a program's inputs.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "runtime/keep.h"
#include "runtime/programs.h"
#include "runtime/runtime.h"
#include "train/bench_step.h"

namespace pleat::train::testing {

// A two- or three-layer model that has every part of a real one. `extra` is appended TOML ("[moe]\nz_coef =
// 1e-3\n").
config::Config small_config(const std::string& extra = "", const std::vector<std::string>& sets = {});

runtime::ProgramChoice train_only();  // no program for evaluation

// Weights and everything else that persists, by name.
using Snapshot = std::map<std::string, std::vector<std::byte>>;
Snapshot snapshot(const runtime::Programs& programs);
std::string digest(const Snapshot& snapshot);
std::vector<double> doubles_of(const std::vector<std::byte>& bytes);  // of a float64 model

using runtime::Runtime;

// Copies the persistent state of `from` into `to`, by name.
void copy_state(const runtime::Programs& from, Runtime& to);
Snapshot snapshot(const Runtime& bound);
// Gradients by parameter name, read off after a run in which they are results.
Snapshot gradients(const program::Program& program, interpret::Executor& executor);
// Keeps gradients to the end of the step, so that they can be read.
program::Program with_gradients_kept(program::Program program);

}  // namespace pleat::train::testing
