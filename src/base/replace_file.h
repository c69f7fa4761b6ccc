// A small file replaced as a whole: after a crash or a power loss the old text is there or the new one, never
// a part or nothing.
#pragma once

#include <string>
#include <string_view>

namespace pleat::base {

// Writes `path`.tmp, fsyncs it, renames it over `path` and fsyncs the folder. Throws VfsError.
void replace_file(const std::string& path, std::string_view text);

}  // namespace pleat::base
