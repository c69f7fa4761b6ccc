// Reads a manifest's JSON straight into the table, event by event: the grammar is the schema, so nesting
// deeper than the schema, unknown keys and doubled keys stop the parse where they occur, and memory is
// bounded by the entries that were complete and legal. No tree of values is ever built.
#include <bit>
#include <nlohmann/json.hpp>
#include <set>

#include "base/checked.h"
#include "checkpoint/damage.h"
#include "checkpoint/manifest.h"

namespace pleat::checkpoint {

namespace {

using Json = nlohmann::json;

class ManifestReader : public nlohmann::json_sax<Json> {
 public:
  explicit ManifestReader(const std::string& path) : path_(path) {}

  Manifest finish() {
    std::vector<const char*> keys = {"format",   "version", "step",  "parent",  "state_sha256", "block_bytes",
                                     "integers", "reals",   "texts", "tensors", "shards"};
    if (!is_old()) keys.push_back("slices");
    if (is_streamed()) keys.push_back("mark");
    require_keys(root_keys_, keys, "the manifest");
    return std::move(manifest_);
  }

  bool null() override {
    if (at_ == At::Root && key_ == "parent") return true;
    refuse("null");
  }
  bool boolean(bool value) override {
    if (at_ != At::Tensor || key_ != "zero" || !is_streamed() || !value) refuse("a boolean");
    return manifest_.tensors.back().zero = true;
  }
  bool number_integer(number_integer_t value) override { return on_integer(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX)) fail_here("{} does not fit in 63 bits", value);
    return on_integer(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t, const string_t&) override {
    refuse("a number that is not an integer of 64 bits");
  }
  bool binary(binary_t&) override { refuse("binary data"); }
  bool string(string_t& value) override { return on_string(value); }

  bool start_object(std::size_t) override {
    switch (at_) {
      case At::Start:
        return enter(At::Root);
      case At::Root:
        if (key_ == "parent") return manifest_.parent = ParentEntry{}, enter_entry(At::Parent);
        if (key_ == "integers") return enter(At::Integers);
        if (key_ == "reals") return enter(At::Reals);
        if (key_ == "texts") return enter(At::Texts);
        break;
      case At::Tensors:
        if (static_cast<int64_t>(manifest_.tensors.size()) >= kMaxTensors)
          fail_here("more than {} tensors", kMaxTensors);
        manifest_.tensors.emplace_back();
        return enter_entry(At::Tensor);
      case At::Slices:
        if (static_cast<int64_t>(manifest_.slices.size()) >= kMaxSlices)
          fail_here("more than {} slices", kMaxSlices);
        manifest_.slices.emplace_back();
        return enter_entry(At::Slice);
      case At::Shards:
        if (static_cast<int64_t>(manifest_.shards.size()) >= kMaxShards)
          fail_here("more than {} shards", kMaxShards);
        manifest_.shards.emplace_back();
        return enter_entry(At::Shard);
      default:
        break;
    }
    refuse("an object");
  }

  bool end_object() override {
    switch (at_) {
      case At::Parent:
        require_keys(entry_keys_, {"step", "sha256"}, "the parent");
        break;
      case At::Tensor: {
        std::vector<const char*> keys = {
            "name", "dtype", "shape", "length", is_old() ? "offset" : "row_bytes", "sha256"};
        if (manifest_.tensors.back().zero) keys.push_back("zero");
        require_keys(entry_keys_, keys, fmt::format("tensor {}", manifest_.tensors.size() - 1));
        return enter(At::Tensors);
      }
      case At::Slice:
        require_keys(entry_keys_, {"tensor", "row_begin", "row_end", "byte_begin", "byte_end", "sha256"},
                     fmt::format("slice {}", manifest_.slices.size() - 1));
        return enter(At::Slices);
      case At::Shard: {
        std::vector<const char*> keys = {"file", "start", "length", "file_length"};
        if (is_old()) keys.push_back("sha256");
        require_keys(entry_keys_, keys, fmt::format("shard {}", manifest_.shards.size() - 1));
        return enter(At::Shards);
      }
      case At::Root:
        return enter(At::End);
      default:
        break;
    }
    return enter(At::Root);
  }

  bool start_array(std::size_t) override {
    if (at_ == At::Root && key_ == "tensors") return enter(At::Tensors);
    if (at_ == At::Root && key_ == "slices" && !is_old()) return enter(At::Slices);
    if (at_ == At::Root && key_ == "shards") return enter(At::Shards);
    if (at_ == At::Tensor && key_ == "shape") return enter(At::Shape);
    refuse("an array");
  }
  bool end_array() override { return enter(at_ == At::Shape ? At::Tensor : At::Root); }

  bool key(string_t& name) override {
    if (static_cast<int64_t>(name.size()) > kMaxNameBytes)
      fail_here("a key has {} bytes; at most {} are allowed", name.size(), kMaxNameBytes);
    key_ = name;
    bool fresh = true;
    switch (at_) {
      case At::Integers:
        fresh = !manifest_.integers.contains(name);
        break;
      case At::Reals:
        fresh = !manifest_.reals.contains(name);
        break;
      case At::Texts:
        fresh = !manifest_.texts.contains(name);
        break;
      case At::Root:
        fresh = root_keys_.insert(name).second;
        break;
      default:
        fresh = entry_keys_.insert(name).second;
        break;
    }
    if (!fresh) fail_here("key '{}' occurs twice", name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    base::fail("{}: not valid JSON at byte {}: {}", path_, position, error.what());
  }

 private:
  enum class At {
    Start,
    Root,
    Parent,
    Integers,
    Reals,
    Texts,
    Tensors,
    Tensor,
    Shape,
    Slices,
    Slice,
    Shards,
    Shard,
    End
  };

  // The version comes before anything that depends on it, as the writer puts it.
  bool is_old() const { return manifest_.version == 1; }
  bool is_streamed() const { return manifest_.version >= kStreamedVersion; }

  template <class... Args>
  [[noreturn]] void fail_here(fmt::format_string<Args...> format, Args&&... args) const {
    base::fail("{}: {}", path_, fmt::format(format, std::forward<Args>(args)...));
  }
  [[noreturn]] void refuse(const char* what) const {
    if (key_.empty()) fail_here("{} is not allowed here", what);
    fail_here("key '{}' must not hold {}", key_, what);
  }
  bool enter(At at) {
    at_ = at;
    return true;
  }
  bool enter_entry(At at) {
    entry_keys_.clear();
    return enter(at);
  }
  void require_keys(const std::set<std::string>& have, const std::vector<const char*>& want,
                    const std::string& what) const {
    for (const char* name : want)
      if (!have.contains(name)) fail_here("{} has no key '{}'", what, name);
    // Values of unknown keys are refused as they come; this catches none that slipped past.
    if (have.size() != want.size()) fail_here("{} has an unknown key", what);
  }

  bool on_integer(int64_t value) {
    const auto size = [&] {
      if (value < 0 || value > kMaxSize)
        fail_here("key '{}' is {}; 0 to {} are allowed", key_, value, kMaxSize);
      return value;
    };
    switch (at_) {
      case At::Root:
        if (key_ == "version") {
          if (value < kOldestVersion) fail_here("there is no format version {}", value);
          if (value > kNewestVersion)
            throw NotForUs(
                fmt::format("{}: written by a newer Pleat, in format version {}; this one reads {} to {}",
                            path_, value, kOldestVersion, kNewestVersion));
          return manifest_.version = value, true;
        }
        if (key_ == "step") return manifest_.step = size(), true;
        if (key_ == "block_bytes") return manifest_.block_bytes = size(), true;
        break;
      case At::Parent:
        if (key_ == "step") return manifest_.parent->step = size(), true;
        break;
      case At::Integers:
        return manifest_.integers[key_] = value, true;
      case At::Tensor:
        if (key_ == "offset" && is_old()) return manifest_.tensors.back().offset = size(), true;
        if (key_ == "row_bytes" && !is_old()) return manifest_.tensors.back().row_bytes = size(), true;
        if (key_ == "length") return manifest_.tensors.back().length = size(), true;
        break;
      case At::Shape: {
        std::vector<int64_t>& shape = manifest_.tensors.back().shape;
        if (static_cast<int64_t>(shape.size()) >= kMaxRank)
          fail_here("a tensor has more than {} dimensions", kMaxRank);
        return shape.push_back(size()), true;
      }
      case At::Slice: {
        SliceEntry& slice = manifest_.slices.back();
        if (key_ == "tensor") return slice.tensor_idx = size(), true;
        if (key_ == "row_begin") return slice.where.row_begin = size(), true;
        if (key_ == "row_end") return slice.where.row_end = size(), true;
        if (key_ == "byte_begin") return slice.where.byte_begin = size(), true;
        if (key_ == "byte_end") return slice.where.byte_end = size(), true;
        break;
      }
      case At::Shard:
        if (key_ == "start") return manifest_.shards.back().start = size(), true;
        if (key_ == "length") return manifest_.shards.back().length = size(), true;
        if (key_ == "file_length") return manifest_.shards.back().file_length = size(), true;
        break;
      default:
        break;
    }
    refuse("a number");
  }

  bool on_string(const std::string& value) {
    const auto digest = [&](base::Sha256Digest& out) {
      if (!base::from_hex(value, out)) fail_here("key '{}' does not hold 64 lower-case hex digits", key_);
      return true;
    };
    switch (at_) {
      case At::Root:
        if (key_ == "format") {
          if (value != "pleat-checkpoint") fail_here("the format is not 'pleat-checkpoint'");
          return true;
        }
        if (key_ == "state_sha256") return digest(manifest_.state_sha256);
        if (key_ == "mark" && is_streamed()) return manifest_.mark = bits_from_hex("mark", value), true;
        break;
      case At::Parent:
        if (key_ == "sha256") return digest(manifest_.parent->manifest_sha256);
        break;
      case At::Reals:
        return manifest_.reals[key_] = std::bit_cast<double>(bits_from_hex("real", value)), true;
      case At::Texts:
        return manifest_.texts[key_] = value, true;
      case At::Tensor: {
        TensorEntry& tensor = manifest_.tensors.back();
        if (key_ == "name") return tensor.name = value, true;
        if (key_ == "dtype") return tensor.dtype = tensor::dtype_named(value), true;
        if (key_ == "sha256") return digest(tensor.sha256);
        break;
      }
      case At::Slice:
        if (key_ == "sha256") return digest(manifest_.slices.back().sha256);
        break;
      case At::Shard: {
        ShardEntry& shard = manifest_.shards.back();
        if (key_ == "file") {
          if (!is_plain_file_name(value)) fail_here("a shard's file name is not one of [A-Za-z0-9._-]");
          return shard.file = value, true;
        }
        if (key_ == "sha256" && is_old()) return digest(shard.sha256);
        break;
      }
      default:
        break;
    }
    refuse("a string");
  }

  uint64_t bits_from_hex(const char* what, const std::string& text) const {
    uint64_t bits = 0;
    bool good = text.size() == 16;
    for (const char c : text) {
      const bool is_digit = c >= '0' && c <= '9', is_letter = c >= 'a' && c <= 'f';
      good = good && (is_digit || is_letter);
      bits = bits << 4 | static_cast<uint64_t>(is_digit ? c - '0' : (c - 'a' + 10) & 15);
    }
    if (!good) fail_here("{} '{}' does not hold 16 lower-case hex digits", what, key_);
    return bits;
  }

  const std::string& path_;
  Manifest manifest_;
  At at_ = At::Start;
  std::string key_;
  std::set<std::string> root_keys_, entry_keys_;
};

}  // namespace

Manifest parse_manifest_body(std::string_view body, const std::string& path) {
  ManifestReader reader(path);
  if (!Json::sax_parse(body.begin(), body.end(), &reader)) base::fail("{}: not valid JSON", path);
  Manifest manifest = reader.finish();
  complete(manifest, path);
  check_contents(manifest, path);
  check_shards(manifest, path);
  check_slices(manifest, path);  // names shards
  // One spelling only: what the writer would not have written is not ours, however well it parses.
  const std::string again = print_manifest(manifest);
  if (!std::string_view(again).starts_with(body) || again.size() != body.size() + 72)
    base::fail("{}: not in the canonical spelling", path);
  return manifest;
}

}  // namespace pleat::checkpoint
