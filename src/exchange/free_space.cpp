#include "exchange/free_space.h"

#include <filesystem>

#include "base/error.h"

namespace pleat::exchange {

void require_space(const std::string& folder, int64_t num_bytes, const char* what) {
  std::error_code unknown;
  const std::filesystem::space_info space = std::filesystem::space(folder, unknown);
  if (unknown || space.available >= static_cast<std::uintmax_t>(num_bytes)) return;
  base::fail_with(base::ExitCode::Storage,
                  "'{}' has {} bytes left; {} needs {} more. Free some, or choose another disk", folder,
                  space.available, what, num_bytes);
}

}  // namespace pleat::exchange
