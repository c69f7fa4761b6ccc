#include "safetensors/shard_index.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "base/error.h"
#include "safetensors/header.h"
#include "safetensors/json_text.h"

namespace pleat::safetensors {

namespace {

class IndexEvents : public JsonEvents {
 public:
  explicit IndexEvents(const std::string& where) : where_(where) {}

  struct Row {
    std::string name;
    const std::string* shard;
  };
  std::vector<Row> rows;
  std::map<std::string, int32_t> shards;  // nodes do not move: rows point at the keys
  std::optional<int64_t> total_size;
  bool has_map = false;

  void begin_object() override {
    if (at() == At::WeightMap) refuse("an object");
    At next = At::Skipped;
    if (depth_ == 0) next = At::Root;
    if (at() == At::Root && key_ == "metadata") next = At::Metadata;
    if (at() == At::Root && key_ == "weight_map") {
      next = At::WeightMap;
      has_map = true;
    }
    if (at() == At::Metadata && key_ == "total_size") refuse("an object");
    push(next);
  }
  void begin_array() override {
    check_scalar_allowed("an array");
    push(At::Skipped);
  }
  void end_object() override { --depth_; }
  void end_array() override { --depth_; }

  void key(const std::string& key) override { key_ = key; }

  void text(const std::string& value) override {
    if (at() != At::WeightMap) return check_scalar_allowed("a string");
    if (static_cast<int64_t>(rows.size()) >= kMaxTensors)
      base::fail("{}: more than {} tensors", where_, kMaxTensors);
    auto shard = shards.find(value);
    if (shard == shards.end()) {
      check_shard_name(value, where_);
      shard = shards.emplace(value, 0).first;
    }
    rows.push_back({key_, &shard->first});
  }

  void whole_number(int64_t value) override {
    if (at() == At::Metadata && key_ == "total_size")
      total_size = value;
    else
      check_scalar_allowed("a number");
  }
  void other(std::string_view what) override { check_scalar_allowed(what); }

 private:
  enum class At { Start, Root, Metadata, WeightMap, Skipped };

  At at() const { return depth_ == 0 ? At::Start : stack_[depth_ - 1]; }
  void push(At next) {
    PLEAT_CHECK(depth_ < static_cast<size_t>(kMaxDepth));
    stack_[depth_++] = next;
  }

  void check_scalar_allowed(std::string_view what) const {
    const bool is_typed_root = at() == At::Root && (key_ == "metadata" || key_ == "weight_map");
    if (at() == At::WeightMap || is_typed_root || (at() == At::Metadata && key_ == "total_size"))
      refuse(what);
  }

  [[noreturn]] void refuse(std::string_view what) const {
    if (at() == At::WeightMap)
      base::fail("{}: weight_map gives {} for tensor {}; a file name is needed", where_, what, shown(key_));
    if (at() == At::Metadata)
      base::fail("{}: total_size is {}; a whole number from 0 to 2^53, in digits, is needed", where_, what);
    base::fail("{}: {} is {}; an object is needed", where_, shown(key_), what);
  }

  const std::string& where_;
  std::string key_;
  At stack_[kMaxDepth] = {};
  size_t depth_ = 0;
};

}  // namespace

const ShardIndex::Entry* ShardIndex::find(std::string_view name) const {
  const auto at = std::lower_bound(entries.begin(), entries.end(), name,
                                   [](const Entry& entry, std::string_view n) { return entry.name < n; });
  return at != entries.end() && at->name == name ? &*at : nullptr;
}

ShardIndex parse_shard_index(std::string_view json, const std::string& where) {
  if (static_cast<int64_t>(json.size()) > kMaxIndexBytes)
    base::fail("{}: {} bytes; an index of at most {} is read", where, json.size(), kMaxIndexBytes);
  IndexEvents events(where);
  read_json(json, where, events);
  if (!events.has_map) base::fail("{}: there is no 'weight_map'", where);
  if (events.rows.empty()) base::fail("{}: weight_map lists no tensor", where);
  ShardIndex index;
  index.total_size = events.total_size;
  for (auto& [name, shard_idx] : events.shards) {
    shard_idx = static_cast<int32_t>(index.shards.size());
    index.shards.push_back(name);
  }
  for (IndexEvents::Row& row : events.rows)
    index.entries.push_back({std::move(row.name), events.shards.at(*row.shard)});
  std::sort(index.entries.begin(), index.entries.end(),
            [](const ShardIndex::Entry& a, const ShardIndex::Entry& b) { return a.name < b.name; });
  return index;
}

void check_shard_name(std::string_view name, const std::string& where) {
  if (name.empty() || name == "." || name == "..")
    base::fail("{}: {} is not the name of a file", where, shown(name));
  if (name.size() > 255)
    base::fail("{}: a file name of {} bytes; at most 255 are allowed", where, name.size());
  for (const char c : name) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                          c == '.' || c == '_' || c == '-';
    if (!is_plain)
      base::fail("{}: file name {} must be one path component of the letters A-Z a-z 0-9 . _ -", where,
                 shown(name));
  }
  if (is_pickle_name(name)) refuse_pickle(name, where);
  if (!name.ends_with(".safetensors"))
    base::fail("{}: file {} is not a .safetensors file", where, shown(name));
}

bool is_pickle_name(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string_view end : {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
    if (lower.ends_with(end)) return true;
  return false;
}

void refuse_pickle(std::string_view name, const std::string& where) {
  base::fail(
      "{}: {} is a Python pickle: reading one can run any code, so it is never opened. Convert it on a "
      "machine you can lose (transformers: from_pretrained, then save_pretrained with safe_serialization) "
      "and "
      "bring the .safetensors files here",
      where, shown(name));
}

}  // namespace pleat::safetensors
