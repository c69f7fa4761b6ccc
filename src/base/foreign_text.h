// First looks at text files others wrote, before anything is built from them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pleat::base {

// What a JSON parser said, as "line 3, column 7: ..." without the parser's own name, short and safe to show.
std::string json_fault(std::string_view parser_message);

// Throws naming `where` when brackets nest deeper than `most`. Code that walks values recursively relies on it.
void refuse_deep_json(std::string_view text, int most, std::string_view where);

// A repository without its large files holds a few lines of text in place of each. Throws naming `path` when
// `start`, the first bytes of a file, is such a stand-in. They are never longer than kMaxLfsPointerBytes.
inline constexpr int64_t kMaxLfsPointerBytes = 1024;
void refuse_lfs_pointer(std::string_view start, const std::string& path);
// The same of an open file of this size, read at its beginning.
void refuse_lfs_pointer(int descriptor, int64_t size, const std::string& path);

}  // namespace pleat::base
