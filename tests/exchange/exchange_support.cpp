#include "exchange/exchange_support.h"

#include <cstdlib>
#include <filesystem>

#include "base/error.h"

namespace pleat::exchange::testing {

std::vector<std::string> golden_families() {
  return {"llama", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "gpt_oss"};
}

std::string golden_folder(const std::string& family) { return std::string(PLEAT_SOURCE_DIR) + "/tests/golden/" + family; }

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "pleat-exchange-XXXXXX").string();
  PLEAT_CHECK(mkdtemp(name.data()), "a folder for a test");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace pleat::exchange::testing
