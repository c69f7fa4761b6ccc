// Folders whose names last.
#pragma once

#include <string>

namespace pleat::base {

// Makes `path` and what is missing above it, and has each new name made durable: what is fsynced inside must not lose
// its way in at a power loss. A parent that may be written but not read cannot be synced, and is not. True where it
// made any. Throws VfsError.
bool make_folders(const std::string& path);

}  // namespace pleat::base
