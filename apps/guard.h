// What stands around every command: streams that bear trouble, errors said once with their exit code, a
// result that did not reach standard output noticed, and enough stack.
#pragma once

#include <functional>
#include <string>

namespace pleat::apps {

// On standard error. Of ranks of one `pleat launch` that end with the very same text one says it, the others that it does.
void say_error(const std::string& text);

// Runs `command`, which returns an exit code or throws; returns the code of the process.
int guarded(const std::function<int()>& command);

}  // namespace pleat::apps
