// The door every technique goes through: a pass takes a program and returns a program.
//
// An exact pass moves, rebuilds or stores elsewhere: results are compared bit for bit. A bounded pass states
// its bound. The table in passes.cpp has all of them and fixes their order. What a key of the configuration
// asks for (freeze, recompute, offload) and would change nothing in the model is an error, never silent; the others
// follow from device and layout, and take what they find.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "program/meeting.h"
#include "program/program.h"

namespace pleat::schedule {

enum class Promise : uint8_t { Exact, Bounded };

struct Pass {
  std::string_view name;
  Promise promise;
  bool (*wanted)(const config::Config&, const program::Program&, program::Meeting);
  program::Program (*apply)(program::Program, const config::Config&, program::Meeting);
  bool places = false;  // puts a finished step on a machine: copies, waits, buffers. These come last
};

const std::vector<Pass>& pass_table();

struct PassReport {
  std::string name;
  double seconds = 0;
  size_t stages_before = 0, stages_after = 0;
};

// Called after every pass with the program it produced (plan it, print it).
using PassObserver = std::function<void(const Pass&, const program::Program&)>;

// The program after one pass. A program with faults (interpret/check) throws, naming the pass. `meeting`: how the ranks of
// the run meet, which no configuration says (comm::Endpoint::calls does).
program::Program apply_pass(const Pass& pass, program::Program program, const config::Config& config,
                            program::Meeting meeting = program::Meeting::OnHost);

// Changes a program ahead of the passes that place it: values that shall be kept for a look, faults for a test.
using ProgramEdit = std::function<program::Program(program::Program)>;

struct PassOptions {
  std::vector<std::string> disabled = {};      // passes that are left out, by name
  std::vector<PassReport>* reports = nullptr;  // gets one per pass that was applied
  PassObserver observe = {};
  ProgramEdit edit = {};
  program::Meeting meeting = program::Meeting::OnHost;
};

// Applies every wanted pass in table order. The program is checked as it is given and after every pass.
program::Program apply_passes(program::Program program, const config::Config& config,
                              const PassOptions& options = {});

}  // namespace pleat::schedule
