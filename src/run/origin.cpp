#include "run/origin.h"

#include <nlohmann/json.hpp>

#include "base/posix_vfs.h"
#include "base/replace_file.h"

namespace pleat::run {

using nlohmann::ordered_json;

namespace {
constexpr int64_t kMostOriginBytes = 64 << 10;
}

std::string Origin::text() const { return step < 0 ? path : fmt::format("{}, step {}", path, step); }

std::optional<Origin> read_origin(const std::string& run_folder) {
  base::PosixVfs vfs;
  const std::string path = base::join_path(run_folder, kOriginName);
  if (!vfs.stat(path)) return std::nullopt;
  const std::string text = base::read_file(vfs, path, kMostOriginBytes);
  try {
    const ordered_json json = ordered_json::parse(text);
    return Origin{json.at("path").get<std::string>(), json.at("asked_step").get<std::string>(),
                  json.at("step").get<int64_t>(), json.at("state_sha256").get<std::string>()};
  } catch (const nlohmann::json::exception& error) {
    base::fail("{}: not what Pleat writes: {}", path, error.what());
  }
}

void write_origin(const std::string& run_folder, const Origin& origin) {
  const ordered_json json = {{"path", origin.path},
                             {"asked_step", origin.asked_step},
                             {"step", origin.step},
                             {"state_sha256", origin.state_sha256}};
  base::replace_file(base::join_path(run_folder, kOriginName),
                     json.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace pleat::run
