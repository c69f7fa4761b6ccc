// Work of the leader alone that may last longer than a call between ranks may (comm.timeout).
#pragma once

#include <functional>

#include "runtime/crew.h"

namespace pleat::train {

// All ranks call it; returns when the leader's `work` is done. The others hear from the leader while it works, so that
// none waits in one call for long. What `work` throws, the leader throws.
void work_on_leader(const runtime::Crew& crew, const char* stage, const std::function<void()>& work);

}  // namespace pleat::train
