// FolderWriter of writer.h.
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "base/checked.h"
#include "safetensors/json_text.h"
#include "safetensors/model_folder.h"
#include "safetensors/writer.h"

namespace pleat::safetensors {

namespace {

void refuse_old_weights(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.ends_with(".safetensors") || name == kIndexFileName)
      base::fail("{}: holds weights already ({}); choose an empty folder", folder, shown(name));
  }
}

}  // namespace

FolderWriter::FolderWriter(const std::string& folder, std::vector<TensorSpec> tensors,
                           int64_t max_shard_bytes) {
  if (max_shard_bytes <= 0)
    base::fail("shards of at most {} bytes; a positive number is needed", max_shard_bytes);
  if (tensors.empty()) base::fail("{}: no tensor to write", folder);
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) fail_io(folder, "make the folder", errno);
  folder_ = OutputFolder::open(folder);
  refuse_old_weights(folder);

  std::vector<std::vector<TensorSpec>> groups;
  std::vector<TensorSpec> current;
  int64_t current_bytes = 0;
  const auto close_group = [&] {
    if (!current.empty()) groups.push_back(std::move(current));
    current.clear();
    current_bytes = 0;
  };
  for (TensorSpec& tensor : tensors) {
    const int64_t bytes = num_bytes_of(tensor, folder);
    total_bytes_ = base::checked_add(total_bytes_, bytes, "bytes of all tensors");
    if (bytes > max_shard_bytes) {
      groups.emplace_back().push_back(std::move(tensor));
      continue;
    }
    if (bytes > max_shard_bytes - current_bytes) close_group();
    current.push_back(std::move(tensor));
    current_bytes += bytes;
  }
  close_group();

  for (size_t i = 0; i < groups.size(); ++i) {
    Shard& shard = shards_.emplace_back();
    shard.file_name = groups.size() == 1
                          ? std::string(kSingleFileName)
                          : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, groups.size());
    shard.tensors = std::move(groups[i]);
    for (const TensorSpec& tensor : shard.tensors)
      if (!shard_of_.emplace(tensor.name, static_cast<int32_t>(i)).second)
        base::fail("{}: tensor {} was declared twice", folder, shown(tensor.name));
    // Says now, before any data, what would be refused later.
    print_header(shard.tensors, usual_metadata(), join(folder, shard.file_name));
  }
}

Writer& FolderWriter::writer_of(Shard& shard) {
  if (!shard.writer) shard.writer = std::make_unique<Writer>(folder_, shard.file_name, shard.tensors);
  return *shard.writer;
}

void FolderWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  const auto found = shard_of_.find(name);
  if (found == shard_of_.end()) base::fail("{}: tensor {} was not declared", folder_->path, shown(name));
  Shard& shard = shards_[static_cast<size_t>(found->second)];
  if (shard.is_synced && bytes.empty()) return;
  Writer& writer = writer_of(shard);
  writer.append(name, bytes);
  // Complete shards are closed at once: open files stay few.
  if (writer.is_complete() && !shard.is_synced) {
    writer.sync();
    shard.is_synced = true;
  }
}

void FolderWriter::finish() {
  for (Shard& shard : shards_) {
    Writer& writer = writer_of(shard);
    if (!shard.is_synced) writer.sync();
    shard.is_synced = true;
  }
  std::unique_ptr<NewFile> index;
  if (shards_.size() > 1) {
    const std::string text = print_index();
    index = std::make_unique<NewFile>(folder_, kIndexFileName, static_cast<int64_t>(text.size()));
    index->write(std::as_bytes(std::span(text)), 0);
    index->sync();
  }
  for (Shard& shard : shards_) shard.writer->commit();
  folder_->sync();
  if (!index) return;
  index->commit();
  folder_->sync();
}

std::string FolderWriter::print_index() const {
  std::string text = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total_bytes_);
  const char* separator = "\n";
  for (const auto& [name, shard_idx] : shard_of_) {
    text += fmt::format("{}    {}: \"{}\"", separator, json_string(name),
                        shards_[static_cast<size_t>(shard_idx)].file_name);
    separator = ",\n";
  }
  return text + "\n  }\n}\n";
}

}  // namespace pleat::safetensors
