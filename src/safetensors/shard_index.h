// model.safetensors.index.json: which file of a model folder holds which tensor. A pure function from text to
// table, to be fuzzed.
//
// Shard names come from the file and become paths, so they are held to one plain component ending in
// .safetensors. Keys beside weight_map and metadata.total_size are skipped: others write notes there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pleat::safetensors {

inline constexpr int64_t kMaxIndexBytes = 100'000'000;

struct ShardIndex {
  struct Entry {
    std::string name;
    int32_t shard_idx;
  };
  std::vector<std::string> shards;  // ascending, each used by at least one entry
  std::vector<Entry> entries;       // ascending by name
  std::optional<int64_t> total_size;

  // nullptr when there is none of that name.
  const Entry* find(std::string_view name) const;
};

ShardIndex parse_shard_index(std::string_view json, const std::string& where);

// Throws unless `name` is one path component of [A-Za-z0-9._-], at most 255 bytes, not "." or "..", and
// ends in .safetensors; pickles get their own message.
void check_shard_name(std::string_view name, const std::string& where);

// pytorch_model.bin and its like: formats that run code when read.
bool is_pickle_name(std::string_view name);
// Refuses it and says what to do instead.
[[noreturn]] void refuse_pickle(std::string_view name, const std::string& where);

}  // namespace pleat::safetensors
