// Any small TOML file as a list of "section.key" and value, read with the care of a configuration: size, nesting and
// names are bounded, and every value knows its line. For files with keys of their own (cost/machine_file.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/schema.h"

namespace pleat::config {

struct FlatEntry {
  std::string path;   // "processor.memory_gib"; names with a dot of their own are refused
  Value value;        // a list holds values of one type
  std::string where;  // "file:line", for messages
};

// In the order of the names. Throws where the text is no TOML, or holds dates, tables in lists or lists of mixed types.
std::vector<FlatEntry> flat_toml(std::string_view text, std::string_view source);
// The text of a file, at most as large as a configuration may be.
std::string toml_file_text(const std::string& path);

}  // namespace pleat::config
