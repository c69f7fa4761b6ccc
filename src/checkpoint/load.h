// Finding, opening and reading checkpoints. Files are hostile until their digests say otherwise: sizes come
// from a validated manifest and are compared with the real files before anything is allocated or read.
//
// Damage is a storage error that names file, block and tensor; a well-formed file that breaks the format, or
// a request that does not fit the checkpoint, is bad input; a failing disk is base::VfsError.
#pragma once

#include <optional>

#include "base/vfs.h"
#include "checkpoint/manifest.h"

namespace pleat::checkpoint {

// `count` bytes of a tensor from `tensor_begin` on, and where they go.
struct Part {
  int64_t tensor_begin = 0, out_begin = 0, count = 0;
};

class Loaded {
 public:
  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  int64_t step() const { return manifest_.step; }
  std::string state_sha256() const { return base::to_hex(manifest_.state_sha256); }
  const base::Sha256Digest& manifest_sha256() const { return manifest_sha256_; }
  // Throw base::Error naming the missing key.
  int64_t integer(const std::string& name) const;
  double real(const std::string& name) const;
  const std::string& text(const std::string& name) const;
  const TensorEntry& tensor(const std::string& name) const;

  // Copies one tensor; `out` must have exactly its length. Each block is checked before a byte of it is
  // copied, the tensor's digest after the last one.
  void read_tensor(const std::string& name, std::span<std::byte> out) const;

  // Reads everything once: headers, block checksums, digests of files and tensors.
  void verify() const;

 private:
  friend Loaded open(base::Vfs& vfs, const std::string& path);
  friend class PartReader;
  Loaded(base::Vfs& vfs, std::string path) : vfs_(&vfs), path_(std::move(path)) {}
  // Reads and checks one block into `scratch`; returns its payload.
  std::span<const std::byte> read_block(base::File& file, size_t shard_idx, int64_t block_idx,
                                        std::vector<std::byte>& scratch) const;
  std::string tensors_between(int64_t begin, int64_t end) const;

  base::Vfs* vfs_;
  std::string path_;
  Manifest manifest_;
  base::Sha256Digest manifest_sha256_{};
};

// Copies parts of tensors and reads only the blocks these lie in, each once as long as places in the stream
// ascend. A block is checked before a byte of it is copied; digests of tensors cannot be.
class PartReader {
 public:
  explicit PartReader(const Loaded& loaded) : loaded_(loaded) {}  // which outlives this
  void read(const std::string& tensor, std::span<const Part> parts, std::span<std::byte> out);

 private:
  void seek(int64_t at);
  const Loaded& loaded_;
  std::optional<base::File> file_;
  size_t shard_idx_ = 0;
  int64_t block_begin_ = 0, block_end_ = 0;  // of the block in scratch_, in the stream
  std::vector<std::byte> scratch_;
  std::span<const std::byte> payload_;
};

// Parses and validates the manifest and compares the directory with it: exactly the listed files, with
// exactly the listed lengths. Reads no shard. `vfs` must outlive the result.
Loaded open(base::Vfs& vfs, const std::string& path);

// As open, for step-N under `directory`; the manifest must be of that step.
Loaded open_step(base::Vfs& vfs, const std::string& directory, int64_t step);

struct Skipped {
  std::string name;
  std::string reason;
};

struct Found {
  std::optional<Loaded> newest;  // verified in full; nothing when no directory verifies
  std::vector<Skipped> skipped;  // what was passed over, newest first, for the log
};

// The newest step-N under `directory` that verifies. LATEST is not trusted: it only adds a note when it is
// damaged or names nothing. A missing directory holds no checkpoints. A checkpoint the disk cannot read (EIO)
// is passed over; any other failing operation throws, because it says nothing about the checkpoint.
Found find_newest(base::Vfs& vfs, const std::string& directory);

struct Target {
  std::string name;
  tensor::Dtype dtype;
  std::vector<int64_t> shape;
  std::span<std::byte> bytes;
};

// Throws one error that lists every missing, extra and mismatched tensor.
struct Expected {
  std::string name;
  tensor::Dtype dtype;
  std::vector<int64_t> shape;
};
void require_fits(const Loaded& loaded, std::span<const Expected> tensors);

// Fills every target. Missing, extra and mismatched tensors are listed in one error. Everything is verified
// before the first target byte changes; the copy then checks each block again.
void restore(const Loaded& loaded, std::span<const Target> targets);

}  // namespace pleat::checkpoint
