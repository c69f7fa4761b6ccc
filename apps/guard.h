// What stands around every command: streams that bear trouble, errors said once with their exit code, a
// result that did not reach standard output noticed, and enough stack.
#pragma once

#include <functional>

namespace pleat::apps {

// Runs `command`, which returns an exit code or throws; returns the code of the process.
int guarded(const std::function<int()>& command);

}  // namespace pleat::apps
