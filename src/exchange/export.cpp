#include "exchange/export.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/posix_vfs.h"
#include "checkpoint/load.h"
#include "exchange/describe.h"
#include "exchange/source_files.h"
#include "exchange/weights.h"
#include "model/parameters.h"
#include "safetensors/convert.h"

namespace pleat::exchange {
namespace {

using safetensors::ElementType;

struct DiskType {
  const char* name;
  const char* long_name;  // in a config.json
  ElementType type;
};
constexpr DiskType kTypes[] = {{"bf16", "bfloat16", ElementType::BF16},
                               {"f16", "float16", ElementType::F16},
                               {"f32", "float32", ElementType::F32}};

// Newer files say dtype, older ones torch_dtype.
const char* dtype_key(const nlohmann::ordered_json& j) {
  return j.contains("torch_dtype") && !j.contains("dtype") ? "torch_dtype" : "dtype";
}

const DiskType& choose_type(const std::string& asked, const nlohmann::ordered_json& j) {
  const auto& said = j.contains(dtype_key(j)) ? j.at(dtype_key(j)) : nlohmann::ordered_json(nullptr);
  for (const DiskType& t : kTypes)
    if (asked.empty() ? said.is_string() && said.get<std::string>() == t.long_name : asked == t.name)
      return t;
  if (!asked.empty()) base::fail("dtype '{}' is not known; needed bf16, f16 or f32", asked);
  if (!said.is_null())
    base::fail("the source's config.json has {} = {}; choose bf16, f16 or f32 with --dtype", dtype_key(j),
               said.dump().substr(0, 60));
  return kTypes[2];
}

// Tensors of a checkpoint by name, no more of them in memory than one exported tensor is made of.
class Reader {
 public:
  Reader(const checkpoint::Loaded& loaded, const std::vector<model::Parameter>& table)
      : loaded_(loaded), table_(table) {}

  void gather_into(const NamedTensor& t, std::vector<std::byte>& out) {
    std::vector<std::string> names;
    if (t.correction_bias_layer >= 0)
      names.push_back(fmt::format("layers.{}.router.expert_bias", t.correction_bias_layer));
    for (const auto& part : t.parts) names.push_back(table_[part.first].name);
    std::erase_if(held_, [&](const auto& entry) {
      return std::find(names.begin(), names.end(), entry.first) == names.end();
    });
    std::vector<Source> sources;
    for (const std::string& name : names) {
      const checkpoint::TensorEntry& entry = loaded_.tensor(name);
      const auto [at, fresh] = held_.try_emplace(name);
      if (fresh) {
        at->second.resize(static_cast<size_t>(entry.length));
        loaded_.read_tensor(name, at->second);
      }
      sources.push_back({name, entry.dtype, entry.shape, at->second});
    }
    gather(t, table_, sources, out);
  }

 private:
  const checkpoint::Loaded& loaded_;
  const std::vector<model::Parameter>& table_;
  std::map<std::string, std::vector<std::byte>> held_;
};

void require_finite(const NamedTensor& t, std::span<const std::byte> bytes) {
  std::vector<float> numbers(bytes.size() / static_cast<size_t>(safetensors::size_of(t.spec.type)));
  safetensors::decode(t.spec.type, bytes, std::span<float>(numbers));
  for (size_t i = 0; i < numbers.size(); ++i)
    if (!std::isfinite(numbers[i]))
      base::fail("element {} of '{}' is not finite as {}; choose a wider --dtype, or an older checkpoint", i,
                 t.spec.name, safetensors::name_of(t.spec.type));
}

void require_shapes(const checkpoint::Loaded& loaded, const std::vector<model::Parameter>& table) {
  for (const model::Parameter& p : table)
    if (p.tied_to.empty() && loaded.tensor(p.name).shape != p.shape)
      base::fail("{}: '{}' is {}, but the saved config makes it {}", loaded.path(), p.name,
                 safetensors::shape_text(loaded.tensor(p.name).shape), safetensors::shape_text(p.shape));
}

int64_t compare(const std::string& path, const std::vector<NamedTensor>& tensors, Reader& reader) {
  const safetensors::ModelFolder folder = safetensors::ModelFolder::open(path);
  if (folder.names().size() != tensors.size())
    base::fail_with(base::ExitCode::Storage, "{} holds {} tensors, {} were written", path,
                    folder.names().size(), tensors.size());
  std::vector<std::byte> meant, found;
  for (const NamedTensor& t : tensors) {
    const safetensors::TensorInfo& info = folder.at(t.spec.name);
    if (info.type != t.spec.type || info.shape != t.spec.shape)
      base::fail_with(base::ExitCode::Storage, "{}: '{}' came back as {} {}", path, t.spec.name,
                      safetensors::name_of(info.type), safetensors::shape_text(info.shape));
    reader.gather_into(t, meant);
    found.resize(static_cast<size_t>(info.num_bytes()));
    folder.read(t.spec.name, found);
    if (meant != found)
      base::fail_with(base::ExitCode::Storage, "{}: '{}' differs from what was written", path, t.spec.name);
  }
  return static_cast<int64_t>(tensors.size());
}

}  // namespace

ExportResult export_model(const ExportOptions& o) {
  namespace fs = std::filesystem;
  require_new_folder(o.model_folder, "an export");
  const config::Config run = config::resolve(config::load(o.run_folder + "/config.toml"));
  base::PosixVfs vfs;
  const checkpoint::Found found = checkpoint::find_newest(vfs, run.checkpoint.dir);
  if (!found.newest) base::fail("'{}' holds no checkpoint that verifies", run.checkpoint.dir);
  const checkpoint::Loaded& loaded = *found.newest;
  // The config the weights were trained with, whatever the file says now.
  config::Config trained =
      config::resolve(config::parse(loaded.text("config"), {}, loaded.path() + " (saved config)"));
  if (o.without_mtp && trained.model.num_mtp_layers == 0)
    base::fail("{} has no layers of multi-token prediction to leave out", loaded.path());
  if (o.without_mtp) trained.model.num_mtp_layers = 0;

  std::vector<SmallFile> files;
  if (fs::exists(o.run_folder + "/source")) files = read_small_files(o.run_folder + "/source");
  Description description;
  if (const SmallFile* source = find(files, "config.json")) {
    const std::string where = o.run_folder + "/source/config.json";
    description.model = family::parse_model_config(source->text, where);
    description.json = source->text;
    const std::vector<std::string> differences = forward_differences(description.model.config, trained);
    if (!differences.empty())
      base::fail("{} does not describe the model of {} any more (described -> trained):\n  {}", where,
                 loaded.path(), fmt::join(differences, "\n  "));
  } else {
    description = describe(trained);
  }
  auto json = nlohmann::ordered_json::parse(description.json);
  if (constexpr const char* key = "num_nextn_predict_layers"; o.without_mtp && json.contains(key)) {
    json[key] = 0;
    description.json = json.dump(2) + "\n";
  }
  const DiskType& type = choose_type(o.dtype, json);
  if (const char* key = dtype_key(json); !json.contains(key) || json.at(key) != type.long_name) {
    json[key] = type.long_name;
    description.json = json.dump(2) + "\n";
  }

  const std::vector<model::Parameter> table = model::make_parameters(trained);
  require_shapes(loaded, table);
  family::FamilyConfig model = description.model;
  model.config = trained;
  const std::vector<NamedTensor> tensors = tensors_on_disk(model, table, type.type, family::Naming::Disk);
  std::vector<safetensors::TensorSpec> specs;
  for (const NamedTensor& t : tensors) specs.push_back(t.spec);

  ExportResult out;
  Reader reader(loaded, table);
  fs::create_directories(o.model_folder);
  safetensors::FolderWriter writer(o.model_folder, std::move(specs), o.max_shard_bytes);
  std::vector<std::byte> bytes;
  for (const NamedTensor& t : tensors) {
    reader.gather_into(t, bytes);
    require_finite(t, bytes);
    writer.append(t.spec.name, bytes);
    out.num_bytes += static_cast<int64_t>(bytes.size());
  }
  writer.finish();
  for (const SmallFile& file : files)
    if (file.name != "config.json") write_small_file(o.model_folder, file);
  write_small_file(o.model_folder, {"config.json", description.json});
  if (o.check) out.num_checked = compare(o.model_folder, tensors, reader);

  out.checkpoint_path = loaded.path();
  out.model_type = model.family->model_type;
  out.dtype = type.name;
  out.step = loaded.step();
  out.num_tensors = static_cast<int64_t>(tensors.size());
  out.num_shards = writer.num_shards();
  return out;
}

}  // namespace pleat::exchange
