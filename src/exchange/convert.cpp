#include "exchange/convert.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/checked.h"
#include "base/error.h"
#include "exchange/free_space.h"
#include "exchange/source_files.h"
#include "safetensors/convert.h"
#include "safetensors/json_text.h"
#include "safetensors/model_folder.h"
#include "safetensors/writer.h"

namespace pleat::exchange {
namespace {

namespace fs = std::filesystem;
using safetensors::ElementType;

// The dtype by the name config.json gives it.
std::string chosen_dtype(const std::string& asked, const nlohmann::ordered_json& config,
                         const std::string& folder) {
  const auto known = [](const std::string& name) { return name == "bfloat16" || name == "float32"; };
  if (!asked.empty()) {
    if (!known(asked)) base::fail("dtype '{}' is not known; needed bfloat16 or float32", asked);
    return asked;
  }
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!config.contains(key) || config[key].is_null()) continue;
    if (config[key].is_string() && known(config[key].get<std::string>())) return config[key];
    base::fail("{}/config.json has {} = {}; choose bfloat16 or float32 with --dtype", folder, key,
               config[key].dump().substr(0, 60));
  }
  return "bfloat16";
}

std::string plain_config(nlohmann::ordered_json config, const std::string& dtype) {
  config.erase("quantization_config");
  config[config.contains("torch_dtype") && !config.contains("dtype") ? "torch_dtype" : "dtype"] = dtype;
  return config.dump(2) + "\n";
}

// Files of the folder that are neither its weights nor copied.
std::vector<std::string> left_behind(const safetensors::ModelFolder& folder,
                                     const std::vector<SmallFile>& copied) {
  std::set<std::string> known = {safetensors::kIndexFileName};
  for (const safetensors::File& file : folder.files()) known.insert(fs::path(file.path()).filename());
  for (const SmallFile& file : copied) known.insert(file.name);
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder.path()))
    if (const std::string name = entry.path().filename(); !known.contains(name))
      out.push_back(safetensors::shown(name));
  std::sort(out.begin(), out.end());
  return out;
}

class Conversion {
 public:
  explicit Conversion(const ConvertOptions& o)
      : o_(o), folder_(safetensors::ModelFolder::open(o.model_folder)) {
    for (const std::string_view name : folder_.names())
      if (const safetensors::TensorInfo& t = folder_.at(name);
          folder_.scheme().is_plain() && !safetensors::is_convertible(t.type) && t.shape.size() > 1)
        base::fail(
            "{}: tensor {} is of {}, but config.json has no quantization_config that says what its codes "
            "mean",
            o.model_folder, safetensors::shown(t.name), safetensors::name_of(t.type));
    if (folder_.scheme().is_plain())
      base::fail(
          "{}: config.json has no quantization_config: the weights are plain, there is nothing to dequantize",
          o.model_folder);
    if (folder_.num_quantized() == 0)
      base::fail(
          "{}: no tensor is stored as codes, though config.json says {}: there is nothing to dequantize; "
          "take "
          "quantization_config out of config.json",
          o.model_folder, folder_.scheme().text());
    files_ = read_small_files(o.model_folder);
    const SmallFile* config = find(files_, "config.json");
    PLEAT_CHECK(config, "a folder with a scheme has a config.json");
    const auto json = nlohmann::ordered_json::parse(config->text);
    result_.dtype = chosen_dtype(o.dtype, json, o.model_folder);
    config_ = plain_config(json, result_.dtype);
    type_ = result_.dtype == "float32" ? ElementType::F32 : ElementType::BF16;
    for (const std::string_view name : folder_.names()) {
      safetensors::TensorSpec spec = folder_.at(name);
      if (folder_.is_quantized(name)) spec.type = type_;
      total_bytes_ =
          base::checked_add(total_bytes_, num_bytes_of(spec, o.model_folder), "bytes of all tensors");
      specs_.push_back(std::move(spec));
    }
  }

  ConvertResult write() {
    fs::create_directories(o_.out_folder);
    require_space(o_.out_folder, total_bytes_, "the model");
    progress_.total = total_bytes_;
    safetensors::FolderWriter writer(o_.out_folder, specs_, o_.max_shard_bytes);
    for (const safetensors::TensorSpec& spec : specs_) copy(spec, writer);
    writer.finish();
    for (const SmallFile& file : files_)
      if (file.name != "config.json") write_small_file(o_.out_folder, file);
    write_small_file(o_.out_folder, {"config.json", config_});

    result_.quantization = folder_.scheme().text();
    result_.num_tensors = static_cast<int64_t>(specs_.size());
    result_.num_dequantized = folder_.num_quantized();
    result_.num_shards = writer.num_shards();
    result_.bytes_read = folder_.total_bytes();
    result_.bytes_written = progress_.done;
    result_.notes = folder_.warnings();
    if (const std::vector<std::string> left = left_behind(folder_, files_); !left.empty())
      result_.notes.push_back(fmt::format(
          "not copied: {}{}",
          fmt::join(left.begin(), left.begin() + std::min<std::ptrdiff_t>(std::ssize(left), 8), ", "),
          left.size() > 8 ? fmt::format(" and {} more", left.size() - 8) : ""));
    return std::move(result_);
  }

 private:
  void copy(const safetensors::TensorSpec& spec, safetensors::FolderWriter& writer) {
    const safetensors::TensorInfo& from = folder_.at(spec.name);
    const int64_t piece_bytes = folder_.piece_bytes(spec.name);
    if (from.num_bytes() == 0) writer.append(spec.name, {});
    for (int64_t at = 0; at < from.num_bytes(); at += piece_bytes) {
      read_.resize(static_cast<size_t>(std::min(piece_bytes, from.num_bytes() - at)));
      folder_.read(spec.name, at, read_);
      const std::span<const std::byte> bytes = spec.type == from.type ? read_ : converted(spec, from.type);
      writer.append(spec.name, bytes);
      progress_.done += static_cast<int64_t>(bytes.size());
      o_.watch.tell(progress_);
    }
  }

  const std::vector<std::byte>& converted(const safetensors::TensorSpec& spec, ElementType from) {
    numbers_.resize(read_.size() / static_cast<size_t>(safetensors::size_of(from)));
    safetensors::decode(from, read_, std::span(numbers_));
    converted_.resize(numbers_.size() * static_cast<size_t>(safetensors::size_of(spec.type)));
    safetensors::encode(spec.type, std::span<const float>(numbers_), converted_);
    // The largest floats round to infinity.
    safetensors::decode(spec.type, converted_, std::span(numbers_));
    if (!std::all_of(numbers_.begin(), numbers_.end(), [](float x) { return std::isfinite(x); }))
      base::fail("{}: a weight of '{}' is too large for a {}; choose --dtype float32", o_.model_folder,
                 spec.name, result_.dtype);
    return converted_;
  }

  const ConvertOptions& o_;
  const safetensors::ModelFolder folder_;
  std::vector<SmallFile> files_;
  std::string config_;
  ElementType type_ = ElementType::BF16;
  std::vector<safetensors::TensorSpec> specs_;
  int64_t total_bytes_ = 0;
  checkpoint::StreamProgress progress_;
  std::vector<std::byte> read_, converted_;
  std::vector<float> numbers_;
  ConvertResult result_;
};

}  // namespace

ConvertResult convert_model(const ConvertOptions& o) {
  require_new_folder(o.out_folder, "a conversion");
  if (fs::exists(o.model_folder + "/config.toml"))
    base::fail("'{}' is a run folder, whose weights are plain; `pleat export` makes a model folder of it",
               o.model_folder);
  if (!fs::exists(o.model_folder + "/config.json"))
    base::fail("'{}' {}; needed is a model folder with a config.json", o.model_folder,
               fs::exists(o.model_folder) ? "has no config.json" : "does not exist");
  return Conversion(o).write();
}

}  // namespace pleat::exchange
