// Files of a folder that others may write to: opening a pipe put in place of one would wait for ever for its other end.
#pragma once

#include <string>

namespace pleat::base {

// Throws where something else than a regular file has this name. Links are followed; nothing there is no fault.
void require_regular(const std::string& path);

}  // namespace pleat::base
