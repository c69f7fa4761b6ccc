// Faults on purpose, for tests: one rank goes wrong at one call, the way ranks do.
#pragma once

#include <string>

#include "comm/options.h"

namespace pleat::comm {

struct Fault {
  enum class Kind {
    Throw,  // the rank fails with an error (code 75)
    Kill,   // its process gets SIGKILL
    Stop,   // its process gets SIGSTOP
    Sleep,  // its thread never comes to the call
    Skip,   // it leaves the call out and goes on
    Size,   // it makes the call with less data than the others
  };
  Kind kind{};
  int rank = 0;          // in the world
  std::string stage;     // a part of the stage's name
  int64_t at_match = 1;  // which of the rank's calls with such a stage (that the fault can be done to)
};

// "KIND:RANK:STAGE[:MATCH]", for example "skip:1:optimizer.norm:2"; throws when it is not of that form.
Fault parse_fault(const std::string& text);

// Carries `fault` out, once. First waits until the other ranks have come as far as they get without this one,
// and prints one line to standard error: what is done, and the steady clock in nanoseconds.
Inject inject(const Fault& fault);

}  // namespace pleat::comm
