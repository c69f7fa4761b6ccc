// The table of contents of a checkpoint, a JSON text with its own SHA-256 as the last line.
//
// All tensors, in ascending order of names and without gaps, form one stream of bytes; shards cut that stream
// into files of bounded size. So a tensor of any size fits, and "no holes, no overlap" is one comparison per
// entry. A manifest has exactly one spelling: the reader refuses any text the writer would not have written.
#pragma once

#include <optional>
#include <string_view>

#include "base/hash.h"
#include "checkpoint/state.h"

namespace pleat::checkpoint {

inline constexpr int64_t kFormatVersion = 1;
inline constexpr int64_t kMaxNameBytes = 1024;
inline constexpr int64_t kMaxTextBytes = int64_t{16} << 20;
inline constexpr int64_t kMaxTensors = 1'000'000;
inline constexpr int64_t kMaxScalars = 1'000'000;
inline constexpr int64_t kMaxShards = 1'000'000;
inline constexpr int64_t kMaxRank = 16;
inline constexpr int64_t kMaxBlockBytes = int64_t{64} << 20;
inline constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;
inline constexpr int64_t kMaxSize = int64_t{1} << 53;
inline constexpr char kManifestName[] = "MANIFEST";

struct TensorEntry {
  std::string name;
  tensor::Dtype dtype;
  std::vector<int64_t> shape;
  int64_t offset;  // in the stream
  int64_t length;
  base::Sha256Digest sha256;  // of the tensor's bytes, taken from live memory
};

struct ShardEntry {
  std::string file;
  int64_t start;  // in the stream
  int64_t length;
  int64_t file_length;
  base::Sha256Digest sha256;  // of the file
};

struct ParentEntry {
  int64_t step;
  base::Sha256Digest manifest_sha256;
};

struct Manifest {
  int64_t step = 0;
  std::optional<ParentEntry> parent;  // the newest older checkpoint there was when this one was written
  base::Sha256Digest state_sha256{};
  int64_t block_bytes = 0;
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> reals;
  std::map<std::string, std::string> texts;
  std::vector<TensorEntry> tensors;
  std::vector<ShardEntry> shards;

  int64_t stream_length() const {
    return tensors.empty() ? 0 : tensors.back().offset + tensors.back().length;
  }
};

// Digests every tensor from live memory and lays out the stream; no shards yet. Throws base::Error
// (bad input) on a doubled, empty, overlong or non-UTF-8 name, a negative step or extent, or a span whose
// length is not that of the shape.
Manifest describe(const StateView& state);

// The digest state_sha256() returns, from the table alone.
base::Sha256Digest digest_of_state(const Manifest& manifest);

std::string print_manifest(const Manifest& manifest);
// The digest in the last line of a printed manifest.
base::Sha256Digest digest_of_manifest(std::string_view text);

// Treats `text` as hostile. `path` is for messages. A text that does not match its own digest is a storage
// error; one that matches but breaks the format is bad input.
Manifest parse_manifest(std::string_view text, const std::string& path);
// The part before the digest line; all checks but the digest.
Manifest parse_manifest_body(std::string_view body, const std::string& path);

// What a writer and a reader both require; throws base::Error (bad input) naming the entry.
void check_contents(const Manifest& manifest,
                    const std::string& path);                          // step, scalars, tensors, state digest
void check_shards(const Manifest& manifest, const std::string& path);  // parent, blocks, shards

// One path component of [A-Za-z0-9._-], not "." or "..", at most 255 bytes.
bool is_plain_file_name(std::string_view name);

}  // namespace pleat::checkpoint
