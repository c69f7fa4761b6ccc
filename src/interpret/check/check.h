// Reads a program and says what is wrong with it, before any byte is allocated.
#pragma once

#include <string>
#include <vector>

#include "interpret/plan/plan.h"
#include "program/meeting.h"
#include "program/program.h"

namespace pleat::interpret {

struct CheckReport {
  std::vector<std::string> faults;  // each names the stage and the value
  int host_waits = 0;               // stages at which the host waits for the device; 0 means sync-free
  bool ok() const { return faults.empty(); }
};

// Argument lists fit ops.def; codes of few bits come with their own scales; every byte read was written; only phase
// update writes persistent values and nothing writes inputs; names are unique, and those of values say their microbatch
// and layer; views lie inside what they view; declared waits are for earlier stages; stages that are
// repeated are microbatches of a longer program (check_repeat.h).
CheckReport check(const program::Program& program);

// For a device beside the host. Ranks that meet on the host: peers touch the arguments of an exchange as soon as
// this rank has come to it, so the stage before it on its lane must be one at which the host waits, for all that
// the exchange waits for. On the device: the host must have waited for the counts it reads, no more; every
// exchange comes behind the one before it in the list, whatever their lanes.
CheckReport check_host_waits(const program::Program& program,
                             program::Meeting meeting = program::Meeting::OnHost);

// After planning: values that share bytes are ordered by data or lane, everything lies inside the arena,
// persistent values share with nobody. Knows nothing of how the planner chose its offsets.
CheckReport check_plan(const program::Program& program, const Plan& plan);
CheckReport check_plan(const program::Program& program, const Plan& plan, const program::Order& order);

// Throws base::Error (exit code 70) with all faults.
void require_ok(const CheckReport& report, const std::string& what);

}  // namespace pleat::interpret
