// A small file replaced as a whole: after a crash or a power loss the old text is there or the new one, never
// a part or nothing.
#pragma once

#include <string>
#include <string_view>

namespace pleat::base {

// Writes `path`.tmp-PID-N, fsyncs it, renames it over `path` and fsyncs the folder. Of several that do so at once each
// has a file of its own, and one is the last. What a killed one left is removed by the next. Throws VfsError.
void replace_file(const std::string& path, std::string_view text);

}  // namespace pleat::base
