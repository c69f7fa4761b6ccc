#include "safetensors/config_json.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/foreign_text.h"
#include "base/regular_file.h"

namespace pleat::safetensors {

namespace {

constexpr uint64_t kMostConfigBytes = 1 << 20;

void refuse_long_config(uint64_t num_bytes, const std::string& source) {
  if (num_bytes > kMostConfigBytes) base::fail("{} has {} bytes; at most 1 MiB is read", source, num_bytes);
}

}  // namespace

std::string read_config_text(const std::string& folder) {
  const std::string path = folder + "/config.json";
  base::require_regular(path);
  std::ifstream in(path, std::ios::binary);
  if (!in) base::fail("cannot open '{}': a model folder needs a config.json", path);
  std::error_code unknown;
  if (const uint64_t size = std::filesystem::file_size(path, unknown); !unknown)
    refuse_long_config(size, path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

nlohmann::json parse_config(const std::string& text, const std::string& source) {
  refuse_long_config(text.size(), source);
  base::refuse_lfs_pointer(text, source);
  base::refuse_deep_json(text, 32, source);
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    base::fail("{}: broken JSON: {}", source, base::json_fault(e.what()));
  }
  if (!json.is_object()) base::fail("{} holds {}; a JSON object is needed", source, json.type_name());
  return json;
}

}  // namespace pleat::safetensors
