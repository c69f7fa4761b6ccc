// The door every technique goes through: a pass takes a program and returns a program.
//
// An exact pass moves, rebuilds or stores elsewhere: results are compared bit for bit. A bounded pass states
// its bound. The table in passes.cpp fixes the order; a pass that would change nothing is an error, never
// silent.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "program/program.h"

namespace pleat::schedule {

enum class Promise : uint8_t { Exact, Bounded };

struct Pass {
  std::string_view name;
  Promise promise;
  bool (*wanted)(const config::Config&);
  program::Program (*apply)(program::Program, const config::Config&);
};

const std::vector<Pass>& pass_table();

struct PassReport {
  std::string name;
  double seconds = 0;
  size_t stages_before = 0, stages_after = 0;
};

// Called after every pass with the program it produced (plan it, check it, print it).
using PassObserver = std::function<void(const Pass&, const program::Program&)>;

// Applies every wanted pass in table order, except those named in `disabled`, then bounds the buffers of
// messages and rings (pass/message_buffers.h, pass/ring_buffers.h).
program::Program apply_passes(program::Program program, const config::Config& config,
                              const std::vector<std::string>& disabled = {},
                              std::vector<PassReport>* reports = nullptr, const PassObserver& observe = {});

}  // namespace pleat::schedule
