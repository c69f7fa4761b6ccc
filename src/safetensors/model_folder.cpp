#include "safetensors/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "safetensors/config_json.h"
#include "safetensors/json_text.h"
#include "safetensors/shard_index.h"

namespace pleat::safetensors {

namespace {

constexpr int64_t kPieceBytes = 8 << 20;

std::string read_index(const Descriptor& folder, const std::string& path) {
  const OpenedFile opened = open_regular(folder, kIndexFileName, path);
  if (opened.size > kMaxIndexBytes)
    base::fail("{}: {} bytes; an index of at most {} is read", path, opened.size, kMaxIndexBytes);
  std::string text(static_cast<size_t>(opened.size), '\0');
  read_exactly(opened.descriptor, std::as_writable_bytes(std::span(text)), 0, path);
  return text;
}

[[noreturn]] void fail_without_weights(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  for (const std::string& name : names)
    if (is_pickle_name(name)) refuse_pickle(name, path);
  base::fail("{}: holds neither {} nor {}", path, kSingleFileName, kIndexFileName);
}

}  // namespace

ModelFolder ModelFolder::open(const std::string& path) {
  ModelFolder model(path);
  const Descriptor folder = open_folder(path);
  const bool has_single = exists(folder, kSingleFileName, path);
  const bool has_index = exists(folder, kIndexFileName, path);
  if (has_single)
    model.open_single(folder);
  else if (has_index)
    model.open_sharded(folder);
  else
    fail_without_weights(path);
  model.decode_blocks();
  if (has_single && has_index)
    model.warnings_.push_back(fmt::format("{}: holds both {} and {}; the first is read, as transformers does",
                                          path, kSingleFileName, kIndexFileName));
  return model;
}

void ModelFolder::open_single(const Descriptor& folder) {
  files_.push_back(File::open(folder, kSingleFileName, join(path_, kSingleFileName)));
  for (const TensorInfo& tensor : files_[0].tensors()) {
    places_.push_back({{&files_[0], &tensor}});
    total_bytes_ += tensor.num_bytes();  // together no more than the file
  }
  std::sort(places_.begin(), places_.end(),
            [](const Place& a, const Place& b) { return a.tensor().name < b.tensor().name; });
  for (const Place& place : places_) names_.push_back(place.tensor().name);
}

void ModelFolder::open_sharded(const Descriptor& folder) {
  const std::string index_path = join(path_, kIndexFileName);
  const ShardIndex index = parse_shard_index(read_index(folder, index_path), index_path);
  for (const std::string& shard : index.shards)
    files_.push_back(File::open(folder, shard, join(path_, shard)));

  places_.assign(index.entries.size(), Place{{nullptr, nullptr}});
  for (size_t shard_idx = 0; shard_idx < files_.size(); ++shard_idx) {
    int64_t num_unlisted = 0;
    std::string first_unlisted;
    for (const TensorInfo& tensor : files_[shard_idx].tensors()) {
      const ShardIndex::Entry* entry = index.find(tensor.name);
      if (entry == nullptr) {
        if (num_unlisted++ == 0) first_unlisted = shown(tensor.name);
        continue;
      }
      if (entry->shard_idx != static_cast<int32_t>(shard_idx))
        base::fail("{}: holds tensor {}, which the index places in '{}'", files_[shard_idx].path(),
                   shown(tensor.name), index.shards[static_cast<size_t>(entry->shard_idx)]);
      places_[static_cast<size_t>(entry - index.entries.data())] = {{&files_[shard_idx], &tensor}};
      total_bytes_ = base::checked_add(total_bytes_, tensor.num_bytes(), "bytes of all tensors");
    }
    if (num_unlisted > 0)
      warnings_.push_back(
          fmt::format("{}: {} tensor(s) that the index does not list are left out, the first: {}",
                      files_[shard_idx].path(), num_unlisted, first_unlisted));
  }
  for (size_t i = 0; i < places_.size(); ++i) {
    const ShardIndex::Entry& entry = index.entries[i];
    if (places_[i].stored.tensor == nullptr)
      base::fail("{}: tensor {} is not in '{}', where the index places it", index_path, shown(entry.name),
                 index.shards[static_cast<size_t>(entry.shard_idx)]);
    names_.push_back(places_[i].tensor().name);
  }
  // Only a warning: published models carry wrong sums, and nothing here is sized by it.
  if (index.total_size && *index.total_size != total_bytes_)
    warnings_.push_back(fmt::format("{}: total_size says {} bytes, but the tensors have {}", index_path,
                                    *index.total_size, total_bytes_));
}

void ModelFolder::decode_blocks() {
  if (!std::filesystem::exists(path_ + "/config.json")) return;
  scheme_ =
      read_scheme(parse_config(read_config_text(path_), path_ + "/config.json"), path_ + "/config.json");
  std::vector<StoredTensor> stored;
  for (const Place& place : places_) stored.push_back(place.stored);
  BlockTensors found = find_block_tensors(scheme_, stored, path_);
  for (std::string& warning : found.warnings) warnings_.push_back(std::move(warning));
  if (found.tensors.empty()) return;
  blocks_ = std::move(found.tensors);
  std::vector<Place> places;
  for (size_t i = 0; i < places_.size(); ++i)
    if (!found.consumed[i]) places.push_back(places_[i]);
  for (const auto& block : blocks_) places.push_back({{nullptr, nullptr}, block.get()});
  std::sort(places.begin(), places.end(),
            [](const Place& a, const Place& b) { return a.tensor().name < b.tensor().name; });
  names_.clear();
  for (const Place& place : places) {
    if (!names_.empty() && names_.back() == place.tensor().name)
      base::fail("{}: tensor {} is stored as numbers and as codes", path_, shown(names_.back()));
    names_.push_back(place.tensor().name);
  }
  places_ = std::move(places);
}

const ModelFolder::Place* ModelFolder::place(std::string_view name) const {
  const auto at = std::lower_bound(names_.begin(), names_.end(), name);
  if (at == names_.end() || *at != name) return nullptr;
  return &places_[static_cast<size_t>(at - names_.begin())];
}

const ModelFolder::Place& ModelFolder::place_at(std::string_view name) const {
  const Place* found = place(name);
  if (found == nullptr) base::fail("{}: there is no tensor {}", path_, shown(name));
  return *found;
}

const TensorInfo* ModelFolder::find(std::string_view name) const {
  const Place* found = place(name);
  return found == nullptr ? nullptr : &found->tensor();
}

const TensorInfo& ModelFolder::at(std::string_view name) const { return place_at(name).tensor(); }

void ModelFolder::read(std::string_view name, std::span<std::byte> out) const {
  const Place& found = place_at(name);
  if (found.blocks == nullptr) return found.stored.file->read(name, out);
  if (static_cast<int64_t>(out.size()) != found.tensor().num_bytes())
    base::fail("{}: tensor {} has {} bytes, but room for {} was given", path_, shown(name),
               found.tensor().num_bytes(), out.size());
  found.blocks->read(0, out);
}

void ModelFolder::read(std::string_view name, int64_t first_byte, std::span<std::byte> out) const {
  const Place& found = place_at(name);
  if (found.blocks == nullptr) return found.stored.file->read(*found.stored.tensor, first_byte, out);
  found.blocks->read(first_byte, out);
}

int64_t ModelFolder::piece_bytes(std::string_view name) const {
  const BlockTensor* blocks = place_at(name).blocks;
  if (blocks == nullptr || blocks->unit_bytes() == 0) return kPieceBytes;
  return std::max<int64_t>(1, kPieceBytes / blocks->unit_bytes()) * blocks->unit_bytes();
}

}  // namespace pleat::safetensors
