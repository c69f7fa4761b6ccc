#include "exchange/export.h"

#include <filesystem>

#include "base/error.h"
#include "checkpoint/load.h"
#include "exchange/trained_model.h"

namespace pleat::exchange {
namespace {

int64_t compare(const std::string& path, TrainedModel& source) {
  const std::vector<NamedTensor>& tensors = source.tensors();
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
    source.read(t, meant);
    found.resize(static_cast<size_t>(info.num_bytes()));
    folder.read(t.spec.name, found);
    if (meant != found)
      base::fail_with(base::ExitCode::Storage, "{}: '{}' differs from what was written", path, t.spec.name);
  }
  return static_cast<int64_t>(tensors.size());
}

}  // namespace

ExportResult export_model(const ExportOptions& o) {
  require_new_folder(o.model_folder, "an export");
  TrainedModel source(o.run_folder, o.dtype, o.without_mtp, o.step);
  std::vector<safetensors::TensorSpec> specs;
  for (const NamedTensor& t : source.tensors()) specs.push_back(t.spec);

  ExportResult out;
  std::filesystem::create_directories(o.model_folder);
  safetensors::FolderWriter writer(o.model_folder, std::move(specs), o.max_shard_bytes);
  std::vector<std::byte> bytes;
  for (const NamedTensor& t : source.tensors()) {
    source.read(t, bytes);
    require_finite(t.spec, bytes);
    writer.append(t.spec.name, bytes);
    out.num_bytes += static_cast<int64_t>(bytes.size());
  }
  writer.finish();
  for (const SmallFile& file : source.files())
    if (file.name != "config.json") write_small_file(o.model_folder, file);
  write_small_file(o.model_folder, {"config.json", source.config_json()});
  if (o.check) out.num_checked = compare(o.model_folder, source);

  out.remarks = source.remarks();
  out.checkpoint_path = source.checkpoint().path();
  out.model_type = source.model().family->model_type;
  out.dtype = source.dtype();
  out.step = source.checkpoint().step();
  out.num_tensors = static_cast<int64_t>(source.tensors().size());
  if (!source.tokenizer_note().empty()) out.notes.push_back(source.tokenizer_note());
  out.num_shards = writer.num_shards();
  return out;
}

}  // namespace pleat::exchange
