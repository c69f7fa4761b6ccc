#include "base/regular_file.h"

#include <filesystem>

#include "base/error.h"

namespace pleat::base {

void require_regular(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::file_status found = std::filesystem::status(path, ignored);
  if (!std::filesystem::exists(found) || std::filesystem::is_regular_file(found)) return;
  fail_with(ExitCode::Storage, "'{}' is not a regular file (a folder, pipe, socket or device is there)",
            path);
}

}  // namespace pleat::base
