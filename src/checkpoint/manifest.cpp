#include "checkpoint/manifest.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "checkpoint/shard.h"

namespace pleat::checkpoint {

namespace {

constexpr std::string_view kDigestPrefix = "sha256 ";

// A JSON string; the library refuses what is not UTF-8.
std::string quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    base::fail("a name or text of the checkpoint is not valid UTF-8");
  }
}

void check_name(std::string_view name, const char* what, const std::string& path) {
  if (name.empty() || static_cast<int64_t>(name.size()) > kMaxNameBytes)
    base::fail("{}: the name of {} has {} bytes; 1 to {} are allowed", path, what, name.size(),
               kMaxNameBytes);
  for (const char c : name)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      base::fail("{}: the name of {} holds a control character", path, what);
}

template <class Map>
void check_scalars(const Map& map, const char* what, const std::string& path) {
  if (static_cast<int64_t>(map.size()) > kMaxScalars)
    base::fail("{}: {} entries in {}; at most {} are allowed", path, map.size(), what, kMaxScalars);
  for (const auto& [name, value] : map) check_name(name, what, path);
}

void check_tensors(const Manifest& manifest, const std::string& path) {
  if (static_cast<int64_t>(manifest.tensors.size()) > kMaxTensors)
    base::fail("{}: {} tensors; at most {} are allowed", path, manifest.tensors.size(), kMaxTensors);
  int64_t offset = 0, num_bytes = 0;
  const std::string* before = nullptr;
  for (const TensorEntry& tensor : manifest.tensors) {
    check_name(tensor.name, "a tensor", path);
    if (before && *before == tensor.name) base::fail("{}: two tensors are named '{}'", path, tensor.name);
    if (before && *before > tensor.name)
      base::fail("{}: tensor '{}' is not in ascending order of names", path, tensor.name);
    before = &tensor.name;
    if (tensor.length != num_bytes_of(tensor.dtype, tensor.shape, tensor.name))
      base::fail("{}: tensor '{}' has length {}; its shape needs {}", path, tensor.name, tensor.length,
                 num_bytes_of(tensor.dtype, tensor.shape, tensor.name));
    if (tensor.offset != offset)
      base::fail("{}: tensor '{}' starts at {}; the one before ends at {}", path, tensor.name, tensor.offset,
                 offset);
    const bool rows = tensor.length == 0 ? tensor.row_bytes == 0
                                         : tensor.row_bytes > 0 && tensor.length % tensor.row_bytes == 0;
    if (!rows)
      base::fail("{}: tensor '{}' of {} bytes cannot have rows of {}", path, tensor.name, tensor.length,
                 tensor.row_bytes);
    if (tensor.zero && tensor.length == 0)
      base::fail("{}: tensor '{}' is called all zero and has no bytes", path, tensor.name);
    offset = base::checked_add(offset, tensor.stored_length(), "bytes of all tensors");
    num_bytes = base::checked_add(num_bytes, tensor.length, "bytes of all tensors");
    if (num_bytes > kMaxSize) base::fail("{}: the tensors have more than {} bytes", path, kMaxSize);
  }
  if ((num_bytes - offset) / kMaxZerosPerByte > offset)
    base::fail("{}: {} bytes of zeros beside {} bytes that are stored; at most {} for each are allowed", path,
               num_bytes - offset, offset, kMaxZerosPerByte);
}

}  // namespace

bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name.size() > 255 || name == "." || name == "..") return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

void check_contents(const Manifest& manifest, const std::string& path) {
  if (manifest.step < 0) base::fail("{}: step {} is negative", path, manifest.step);
  check_scalars(manifest.integers, "integers", path);
  check_scalars(manifest.reals, "reals", path);
  check_scalars(manifest.texts, "texts", path);
  for (const auto& [name, text] : manifest.texts)
    if (static_cast<int64_t>(text.size()) > kMaxTextBytes)
      base::fail("{}: text '{}' has {} bytes; at most {} are allowed", path, name, text.size(),
                 kMaxTextBytes);
  check_tensors(manifest, path);
  if (manifest.state_sha256 != digest_of_state(manifest))
    base::fail("{}: the state digest is not that of the listed tensors and scalars", path);
}

void check_shards(const Manifest& manifest, const std::string& path) {
  if (manifest.parent && (manifest.parent->step < 0 || manifest.parent->step >= manifest.step))
    base::fail("{}: parent step {} is not before step {}", path, manifest.parent->step, manifest.step);
  if (manifest.block_bytes < 1 || manifest.block_bytes > kMaxBlockBytes)
    base::fail("{}: block_bytes {} is not in 1..{}", path, manifest.block_bytes, kMaxBlockBytes);
  if (static_cast<int64_t>(manifest.shards.size()) > kMaxShards)
    base::fail("{}: {} shards; at most {} are allowed", path, manifest.shards.size(), kMaxShards);
  int64_t start = 0;
  for (size_t i = 0; i < manifest.shards.size(); ++i) {
    const ShardEntry& shard = manifest.shards[i];
    if (shard.file != shard_name(i))
      base::fail("{}: shard {} is in file '{}'; '{}' was expected", path, i, shard.file, shard_name(i));
    if (shard.start != start)
      base::fail("{}: shard '{}' starts at {}; the one before ends at {}", path, shard.file, shard.start,
                 start);
    if (shard.length < 1 || shard.length > kMaxSize)
      base::fail("{}: shard '{}' has length {}", path, shard.file, shard.length);
    if (ceil_blocks(shard.length, manifest.block_bytes) > kMaxBlocks)
      base::fail("{}: shard '{}' has more than {} blocks", path, shard.file, kMaxBlocks);
    const int64_t file_length = ShardLayout::of(manifest, i).file_length();
    if (shard.file_length != file_length)
      base::fail("{}: shard '{}' has file length {}; its contents need {}", path, shard.file,
                 shard.file_length, file_length);
    start += shard.length;
    if (start > kMaxSize) base::fail("{}: the shards have more than {} bytes", path, kMaxSize);
  }
  if (start != manifest.stream_length())
    base::fail("{}: the shards hold {} bytes; the tensors need {}", path, start, manifest.stream_length());
}

std::string print_manifest(const Manifest& manifest) {
  std::string out;
  const auto add = [&out]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
  };
  const auto add_map = [&](const char* key, const auto& map, auto&& value) {
    add("  \"{}\": {{", key);
    const char* separator = "";
    for (const auto& [name, v] : map)
      add("{}\n    {}: {}", separator, quoted(name), value(v)), separator = ",";
    add("}},\n");
  };
  add("{{\n  \"format\": \"pleat-checkpoint\",\n  \"version\": {},\n  \"step\": {},\n", manifest.version,
      manifest.step);
  if (manifest.parent)
    add("  \"parent\": {{\"step\": {}, \"sha256\": \"{}\"}},\n", manifest.parent->step,
        base::to_hex(manifest.parent->manifest_sha256));
  else
    add("  \"parent\": null,\n");
  add("  \"state_sha256\": \"{}\",\n  \"block_bytes\": {},\n", base::to_hex(manifest.state_sha256),
      manifest.block_bytes);
  if (manifest.version >= kStreamedVersion) add("  \"mark\": \"{:016x}\",\n", manifest.mark);
  add_map("integers", manifest.integers, [](int64_t v) { return v; });
  add_map("reals", manifest.reals,
          [](double v) { return fmt::format("\"{:016x}\"", std::bit_cast<uint64_t>(v)); });
  add_map("texts", manifest.texts, [](const std::string& v) { return quoted(v); });
  add("  \"tensors\": [");
  const char* separator = "";
  const bool old = manifest.version == 1;
  for (const TensorEntry& t : manifest.tensors) {
    add("{}\n    {{\"name\": {}, \"dtype\": \"{}\", \"shape\": [{}], ", separator, quoted(t.name),
        tensor::name_of(t.dtype), fmt::join(t.shape, ", "));
    if (old)
      add("\"offset\": {}, \"length\": {}, ", t.offset, t.length);
    else
      add("\"length\": {}, \"row_bytes\": {}, {}", t.length, t.row_bytes, t.zero ? "\"zero\": true, " : "");
    add("\"sha256\": \"{}\"}}", base::to_hex(t.sha256));
    separator = ",";
  }
  if (!old) {
    add("],\n  \"slices\": [");
    separator = "";
    for (const SliceEntry& s : manifest.slices) {
      add("{}\n    {{\"tensor\": {}, \"row_begin\": {}, \"row_end\": {}, \"byte_begin\": {}, \"byte_end\": "
          "{}, "
          "\"sha256\": \"{}\"}}",
          separator, s.tensor_idx, s.where.row_begin, s.where.row_end, s.where.byte_begin, s.where.byte_end,
          base::to_hex(s.sha256));
      separator = ",";
    }
  }
  add("],\n  \"shards\": [");
  separator = "";
  for (const ShardEntry& s : manifest.shards) {
    add("{}\n    {{\"file\": {}, \"start\": {}, \"length\": {}, \"file_length\": {}", separator,
        quoted(s.file), s.start, s.length, s.file_length);
    if (old) add(", \"sha256\": \"{}\"", base::to_hex(s.sha256));
    add("}}");
    separator = ",";
  }
  add("]\n}}\n");
  const std::string digest = base::to_hex(base::sha256(out));
  add("{}{}\n", kDigestPrefix, digest);
  return out;
}

namespace {

// The body and the digest of a manifest; nothing when the last line is not one.
struct SplitText {
  std::string_view body;
  base::Sha256Digest digest;
};
std::optional<SplitText> split_text(std::string_view text) {
  constexpr size_t kLine = kDigestPrefix.size() + 64 + 1;
  if (text.size() < kLine) return std::nullopt;
  SplitText out{text.substr(0, text.size() - kLine), {}};
  const std::string_view line = text.substr(out.body.size());
  if (!line.starts_with(kDigestPrefix) || line.back() != '\n') return std::nullopt;
  if (!base::from_hex(line.substr(kDigestPrefix.size(), 64), out.digest)) return std::nullopt;
  return out;
}

}  // namespace

base::Sha256Digest digest_of_manifest(std::string_view text) {
  const std::optional<SplitText> parts = split_text(text);
  PLEAT_CHECK(parts.has_value());
  return parts->digest;
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  const std::optional<SplitText> parts = split_text(text);
  if (!parts)
    base::fail_with(base::ExitCode::Storage, "{}: truncated or damaged: the last line is not its SHA-256",
                    path);
  if (base::sha256(parts->body) != parts->digest)
    base::fail_with(base::ExitCode::Storage,
                    "{}: damaged: the contents do not have the SHA-256 in the last line", path);
  return parse_manifest_body(parts->body, path);
}

}  // namespace pleat::checkpoint
