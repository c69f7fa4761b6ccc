// The config.json of a model folder, before anybody takes a meaning from it: a bounded text, no stand-in of Git
// LFS, brackets that do not nest deep, one JSON object.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace pleat::safetensors {

// Throws when there is none.
std::string read_config_text(const std::string& folder);

// `source` opens every message.
nlohmann::json parse_config(const std::string& text, const std::string& source);

}  // namespace pleat::safetensors
