// The table of contents of a checkpoint, a JSON text with its own SHA-256 as the last line.
//
// A tensor is seen as rows of equal length, and lies in the checkpoint as slices: rectangles of some rows by some
// bytes of each, which cover it exactly once. All slices one after the other form one stream of bytes; shards cut that
// stream into files of bounded size, and every writer has files of its own. So a rank of any layout writes what
// it holds as it holds it, and "no gap, no overlap" is one sweep over the rows. A manifest has exactly one
// spelling: the reader refuses any text the writer would not have written.
//
// Version 1 had one writer and no slices: its stream is all tensors in ascending order of names, each one row and one
// slice. It is read as that.
//
// Version 3 is of a state that was never in memory as a whole (save_streamed.h). A tensor of it may be all zero, with
// no slice and no byte in the stream; and its mark is given, because it must be known before the first digest is.
// Whatever else is saved stays version 2.
#pragma once

#include <optional>
#include <string_view>

#include "base/hash.h"
#include "checkpoint/state.h"

namespace pleat::checkpoint {

inline constexpr int64_t kFormatVersion = 2;    // written by save
inline constexpr int64_t kStreamedVersion = 3;  // written by save_streamed
inline constexpr int64_t kOldestVersion = 1;    // read, and all up to
inline constexpr int64_t kNewestVersion = 3;
inline constexpr int64_t kMaxNameBytes = 1024;
inline constexpr int64_t kMaxTextBytes = int64_t{16} << 20;
inline constexpr int64_t kMaxTensors = 1'000'000;
inline constexpr int64_t kMaxScalars = 1'000'000;
inline constexpr int64_t kMaxShards = 1'000'000;
inline constexpr int64_t kMaxSlices = 4'000'000;
inline constexpr int64_t kMaxRank = 16;
inline constexpr int64_t kMaxBlockBytes = int64_t{64} << 20;
inline constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;
inline constexpr int64_t kMaxSize = int64_t{1} << 53;
// Bytes of zeros for one that is stored: more than any optimizer has, and so a small file cannot ask for a year of
// hashing.
inline constexpr int64_t kMaxZerosPerByte = 64;
inline constexpr char kManifestName[] = "MANIFEST";

struct TensorEntry {
  std::string name;
  tensor::Dtype dtype;
  std::vector<int64_t> shape;
  int64_t offset;  // in all tensors, one after the other, without those that are all zero
  int64_t length;
  int64_t row_bytes;          // divides the length; 0 where that is 0
  base::Sha256Digest sha256;  // of the tensor's bytes, also where they are all zero
  bool zero = false;          // every byte is, and none is stored

  int64_t stored_length() const { return zero ? 0 : length; }
  int64_t num_rows() const { return row_bytes == 0 ? 0 : length / row_bytes; }
};

struct Rectangle {
  int64_t row_begin = 0, row_end = 0, byte_begin = 0, byte_end = 0;
  int64_t width() const { return byte_end - byte_begin; }
  int64_t length() const { return (row_end - row_begin) * width(); }
};

// Rows one after the other.
struct SliceEntry {
  int64_t tensor_idx = 0;
  Rectangle where;
  base::Sha256Digest sha256{};  // taken from live memory
  int64_t start = 0;            // in the stream
};

struct ShardEntry {
  std::string file;
  int64_t start;  // in the stream
  int64_t length;
  int64_t file_length;
  // Of the file; version 1 only. Nothing compares it: every byte of a file is a header that follows from the
  // manifest, or belongs to a slice.
  base::Sha256Digest sha256;
};

struct ParentEntry {
  int64_t step;
  base::Sha256Digest manifest_sha256;
};

struct Manifest {
  int64_t version = kFormatVersion;
  int64_t step = 0;
  std::optional<ParentEntry> parent;  // the newest older checkpoint there was when this one was written
  base::Sha256Digest state_sha256{};
  int64_t block_bytes = 0;
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> reals;
  std::map<std::string, std::string> texts;
  std::vector<TensorEntry> tensors;
  std::vector<SliceEntry> slices;  // in the order of the stream
  std::vector<ShardEntry> shards;
  uint64_t mark = 0;  // of this checkpoint, in every header of its files; from version 3 on in the text

  int64_t stream_length() const {
    return tensors.empty() ? 0 : tensors.back().offset + tensors.back().stored_length();
  }
};

// Digests every tensor from live memory; no slices and shards yet. Throws base::Error
// (bad input) on a doubled, empty, overlong or non-UTF-8 name, a negative step or extent, or a span whose
// length is not that of the shape.
Manifest describe(const StateView& state);

// The digest state_sha256() returns, from the table alone.
base::Sha256Digest digest_of_state(const Manifest& manifest);

// Fills in what follows from the rest: offsets, the slices of version 1, where slices start, the mark up to version 2.
void complete(Manifest& manifest, const std::string& path);

std::string print_manifest(const Manifest& manifest);
// The digest in the last line of a printed manifest.
base::Sha256Digest digest_of_manifest(std::string_view text);

// Treats `text` as hostile. `path` is for messages. A text that does not match its own digest is a storage
// error; one that matches but breaks the format is bad input; of a newer version, NotForUs (damage.h).
Manifest parse_manifest(std::string_view text, const std::string& path);
// The part before the digest line; all checks but the digest.
Manifest parse_manifest_body(std::string_view body, const std::string& path);

// What a writer and a reader both require; throws base::Error (bad input) naming the entry.
void check_contents(const Manifest& manifest,
                    const std::string& path);                          // step, scalars, tensors, state digest
void check_shards(const Manifest& manifest, const std::string& path);  // parent, blocks, shards
void check_slices(const Manifest& manifest, const std::string& path);  // every byte in exactly one (slices.h)

// One path component of [A-Za-z0-9._-], not "." or "..", at most 255 bytes.
bool is_plain_file_name(std::string_view name);

}  // namespace pleat::checkpoint
