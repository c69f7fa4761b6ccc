#include "exchange/export.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "checkpoint/load.h"
#include "exchange/free_space.h"
#include "exchange/trained_model.h"

namespace pleat::exchange {
namespace {

int64_t compare(const std::string& path, TrainedModel& source, int64_t num_bytes,
                const checkpoint::StreamWatch& watch) {
  const std::vector<NamedTensor>& tensors = source.tensors();
  const safetensors::ModelFolder folder = safetensors::ModelFolder::open(path);
  if (folder.names().size() != tensors.size())
    base::fail_with(base::ExitCode::Storage, "{} holds {} tensors, {} were written", path,
                    folder.names().size(), tensors.size());
  std::vector<std::byte> found;
  checkpoint::StreamProgress progress{checkpoint::StreamProgress::ReadBack, 0, num_bytes};
  for (const NamedTensor& t : tensors) {
    const safetensors::TensorInfo& info = folder.at(t.spec.name);
    if (info.type != t.spec.type || info.shape != t.spec.shape)
      base::fail_with(base::ExitCode::Storage, "{}: '{}' came back as {} {}", path, t.spec.name,
                      safetensors::name_of(info.type), safetensors::shape_text(info.shape));
    int64_t at = 0;
    source.stream(t, [&](std::span<const std::byte> meant) {
      found.resize(meant.size());
      folder.read(t.spec.name, at, found);
      if (!std::equal(meant.begin(), meant.end(), found.begin()))
        base::fail_with(base::ExitCode::Storage, "{}: '{}' differs from what was written", path, t.spec.name);
      at += static_cast<int64_t>(meant.size());
      progress.done += static_cast<int64_t>(meant.size());
      watch.tell(progress);
    });
    if (at != info.num_bytes())
      base::fail_with(base::ExitCode::Storage, "{}: '{}' has {} bytes; {} were written", path, t.spec.name,
                      info.num_bytes(), at);
  }
  return static_cast<int64_t>(tensors.size());
}

}  // namespace

ExportResult export_model(const ExportOptions& o) {
  require_new_folder(o.model_folder, "an export");
  TrainedModel source(o.run_folder, o.dtype, o.without_mtp, o.step, o.watch);
  ExportResult out;
  std::vector<safetensors::TensorSpec> specs;
  for (const NamedTensor& t : source.tensors()) {
    specs.push_back(t.spec);
    out.num_bytes += safetensors::num_bytes_of(t.spec, o.model_folder);
  }
  std::filesystem::create_directories(o.model_folder);
  require_space(o.model_folder, out.num_bytes, "the model");
  safetensors::FolderWriter writer(o.model_folder, std::move(specs), o.max_shard_bytes);
  checkpoint::StreamProgress progress{checkpoint::StreamProgress::Write, 0, out.num_bytes};
  for (const NamedTensor& t : source.tensors()) {
    int64_t first = 0;
    source.stream(t, [&](std::span<const std::byte> bytes) {
      require_finite(t.spec, bytes, first);
      first += static_cast<int64_t>(bytes.size()) / safetensors::size_of(t.spec.type);
      writer.append(t.spec.name, bytes);
      progress.done += static_cast<int64_t>(bytes.size());
      o.watch.tell(progress);
    });
  }
  writer.finish();
  for (const SmallFile& file : source.files())
    if (file.name != "config.json") write_small_file(o.model_folder, file);
  write_small_file(o.model_folder, {"config.json", source.config_json()});
  if (o.check) out.num_checked = compare(o.model_folder, source, out.num_bytes, o.watch);

  out.remarks = source.remarks();
  out.checkpoint_path = source.checkpoint().path();
  out.model_type = source.model().family->model_type;
  out.dtype = source.dtype();
  out.step = source.checkpoint().step();
  out.num_tensors = static_cast<int64_t>(source.tensors().size());
  if (const int64_t num = source.num_rounded(); num > 0)
    out.notes.push_back(fmt::format("{} kept in more bits than {} and rounded to it; --dtype f32 keeps them",
                                    num == 1 ? "1 tensor was" : fmt::format("{} tensors were", num),
                                    out.dtype));
  if (!source.tokenizer_note().empty()) out.notes.push_back(source.tokenizer_note());
  out.num_shards = writer.num_shards();
  return out;
}

}  // namespace pleat::exchange
