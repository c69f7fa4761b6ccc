#include "safetensors/quantized/scheme.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "safetensors/json_text.h"

namespace pleat::safetensors {

namespace {

using nlohmann::json;

constexpr int64_t kMostInBlock = 65536;  // rows or columns
constexpr size_t kMostModules = 4096;

constexpr const char* kWhatIsRead =
    "read are \"fp8\" (E4M3 codes with a scale for every block of a matrix, as DeepSeek-V3 and Qwen3-FP8 "
    "have "
    "them) and \"mxfp4\" (as GPT-OSS has it)";

bool has(const json& object, const char* key) { return object.contains(key) && !object[key].is_null(); }

std::string cut(const json& value) {
  if (value.is_string()) return shown(value.get<std::string>());
  return shown(value.dump(-1, ' ', true, json::error_handler_t::replace));
}

// A setting that changes what codes mean, or asks for numbers nobody here uses.
void require(const json& quantization, const char* key, std::initializer_list<const char*> allowed,
             const std::string& source) {
  if (!has(quantization, key)) return;
  const json& value = quantization[key];
  for (const char* one : allowed)
    if (value.is_string() && value.get_ref<const std::string&>() == one) return;
  base::fail("{}: quantization_config.{} = {} is not read; needed is \"{}\"", source, key, cut(value),
             fmt::join(allowed, "\" or \""));
}

void read_block_size(const json& quantization, const std::string& source, Scheme& out) {
  if (!has(quantization, "weight_block_size"))
    base::fail(
        "{}: quantization_config has no weight_block_size: fp8 with one scale for a whole tensor or row is "
        "not "
        "read; needed is weight_block_size = [rows, columns]",
        source);
  const json& size = quantization["weight_block_size"];
  const auto fits = [](const json& n) { return n.is_number_unsigned() && n >= 1 && n <= kMostInBlock; };
  if (!size.is_array() || size.size() != 2 || !fits(size[0]) || !fits(size[1]))
    base::fail(
        "{}: quantization_config.weight_block_size = {}; needed are two whole numbers from 1 to {}, rows and "
        "columns",
        source, cut(size), kMostInBlock);
  out.block_rows = size[0].get<int64_t>();
  out.block_columns = size[1].get<int64_t>();
}

void read_plain_modules(const json& quantization, const std::string& source, Scheme& out) {
  for (const char* key : {"modules_to_not_convert", "ignored_layers"}) {
    if (!has(quantization, key)) continue;
    const json& list = quantization[key];
    const auto is_text = [](const json& one) { return one.is_string(); };
    if (!list.is_array() || list.size() > kMostModules || !std::all_of(list.begin(), list.end(), is_text))
      base::fail("{}: quantization_config.{} must be a list of at most {} names of modules", source, key,
                 kMostModules);
    for (const json& one : list) out.plain_modules.push_back(one.get<std::string>());
  }
}

// All of `text`, where `*` in `pattern` stands for any part of it.
bool matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, from = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++from;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace

std::string Scheme::text() const {
  switch (method) {
    case Method::Plain:
      return "";
    case Method::Fp8:
      return fmt::format("fp8 with a scale for each {} x {} weights", block_rows, block_columns);
    case Method::Mxfp4:
      return "mxfp4";
  }
  return "";
}

Scheme read_scheme(const json& config, const std::string& source) {
  Scheme out;
  if (has(config, "compression_config"))
    base::fail("{}: compression_config (compressed-tensors) is not read; {}", source, kWhatIsRead);
  if (!has(config, "quantization_config")) return out;
  const json& quantization = config["quantization_config"];
  if (!quantization.is_object())
    base::fail("{}: quantization_config is {}; an object is needed", source, cut(quantization));
  if (!has(quantization, "quant_method"))
    base::fail("{}: quantization_config has no quant_method; {}", source, kWhatIsRead);
  const json& method = quantization["quant_method"];
  if (method == "fp8") {
    out.method = Scheme::Method::Fp8;
    require(quantization, "fmt", {"e4m3"}, source);
    require(quantization, "activation_scheme", {"dynamic"}, source);
    require(quantization, "scale_fmt", {"float", "ue8m0"}, source);
    require(quantization, "expert_dtype", {"fp8"}, source);
    read_block_size(quantization, source, out);
  } else if (method == "mxfp4") {
    out.method = Scheme::Method::Mxfp4;
  } else {
    base::fail(
        "{}: weights quantized by {} are not read; {}. Take the folder with plain weights, or let the "
        "library "
        "that made this one write them",
        source, cut(method), kWhatIsRead);
  }
  read_plain_modules(quantization, source, out);
  return out;
}

ModuleNames::ModuleNames(const std::vector<std::string>& names) {
  for (const std::string& given : names) {
    if (given.empty()) continue;
    if (given.find('*') == std::string::npos) {
      literal_.insert(given);
      continue;
    }
    std::string& pattern = patterns_.emplace_back();
    for (size_t i = 0; i < given.size(); ++i)  // some write a regular expression: `.*`
      if (given[i] != '.' || i + 1 == given.size() || given[i + 1] != '*') pattern += given[i];
  }
}

bool ModuleNames::mean(std::string_view tensor) const {
  if (literal_.empty() && patterns_.empty()) return false;
  const std::string_view module = tensor.substr(0, tensor.rfind('.'));
  if (literal_.contains(tensor)) return true;
  for (size_t i = 0; i < module.size(); ++i) {
    const bool is_beginning = module[i] == '.' && literal_.contains(module.substr(0, i));
    if (is_beginning || literal_.contains(module.substr(i))) return true;
  }
  return std::any_of(patterns_.begin(), patterns_.end(), [&](const std::string& pattern) {
    return matches(pattern, tensor) || matches(pattern, module) || matches(pattern + ".*", module) ||
           matches("*" + pattern, module);
  });
}

}  // namespace pleat::safetensors
