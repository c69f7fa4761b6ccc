// Which machine a process runs on.
#pragma once

#include <string>

namespace pleat::base {

// The machine's name with the mark of its last start: equal in two processes that can share memory, and different on two
// machines of one name.
std::string host_name();

}  // namespace pleat::base
