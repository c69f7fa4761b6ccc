// How a config.json says that a folder stores its weights: as numbers, or as codes of few bits that are numbers
// only together with the scale of their block.
//
//   fp8    E4M3 codes, one scale for every block of rows and columns of a matrix (DeepSeek-V3, Qwen3-FP8)
//   mxfp4  E2M1 codes, two in a byte, one power of two for every 32 of a row (GPT-OSS)
//
// Every other way is refused by its name.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace pleat::safetensors {

struct Scheme {
  enum class Method : uint8_t { Plain, Fp8, Mxfp4 };
  Method method = Method::Plain;
  int64_t block_rows = 0,
          block_columns = 0;  // fp8: of the weights that share a scale; the last ones may be fewer
  std::vector<std::string> plain_modules;  // what it says is stored as numbers; `*` stands for any text

  bool is_plain() const { return method == Method::Plain; }
  std::string text() const;  // "fp8 with a scale for each 128 x 128 weights"; empty when plain
};

// From quantization_config of a whole config.json; plain where there is none.
Scheme read_scheme(const nlohmann::json& config, const std::string& source);

// Modules by name, as lists in quantization_config give them. A name means a tensor where it is the tensor's whole
// name, a beginning of its module's name up to a dot, or an end of it.
class ModuleNames {
 public:
  explicit ModuleNames(const std::vector<std::string>& names);
  bool mean(std::string_view tensor) const;

 private:
  std::set<std::string, std::less<>> literal_;
  std::vector<std::string> patterns_;  // those with a `*`
};

}  // namespace pleat::safetensors
