// Finding, opening and reading checkpoints. Files are hostile until their digests say otherwise: sizes come
// from a validated manifest and are compared with the real files before anything is allocated or read.
//
// Damage is a storage error that names file, block and tensor; a well-formed file that breaks the format, or
// a request that does not fit the checkpoint, is bad input; a failing disk is base::VfsError; NotForUs and is_damage are
// in damage.h.
#pragma once

#include <functional>
#include <optional>

#include "base/vfs.h"
#include "checkpoint/block_reader.h"
#include "checkpoint/bytes.h"
#include "checkpoint/slices.h"
#include "checkpoint/verify.h"

namespace pleat::checkpoint {

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
  void read_tensor(const std::string& name, const Bytes& out) const;

  // Reads everything once: headers, block checksums, digests of slices and tensors.
  void verify() const;
  // The same of some tensors: what one of several ranks does. `progress` hears of the bytes that were read.
  void verify(TensorRange range, const std::function<void(int64_t)>& progress = {}) const;

 private:
  friend Loaded open(base::Vfs& vfs, const std::string& path);
  friend class PartReader;
  Loaded(base::Vfs& vfs, std::string path) : vfs_(&vfs), path_(std::move(path)) {}
  [[noreturn]] void fail_digest(const TensorEntry& entry) const;

  base::Vfs* vfs_;
  std::string path_;
  Manifest manifest_;
  SliceIndex index_;
  base::Sha256Digest manifest_sha256_{};
};

// Copies parts of tensors and reads only the blocks these lie in, each once as long as places in a tensor
// ascend. A block is checked before a byte of it is copied; digests of slices and tensors cannot be.
class PartReader {
 public:
  explicit PartReader(const Loaded& loaded)  // which outlives this
      : loaded_(loaded), blocks_(*loaded.vfs_, loaded.path_, loaded.manifest_) {}
  void read(const std::string& tensor, std::span<const Part> parts, std::span<std::byte> out);

 private:
  const Loaded& loaded_;
  BlockReader blocks_;
  std::optional<TensorWalk> walk_;  // of the tensor read last
  const TensorEntry* walked_ = nullptr;
};

// Parses and validates the manifest and compares the directory with it: exactly the listed files, with
// exactly the listed lengths. Reads no shard. `vfs` must outlive the result.
Loaded open(base::Vfs& vfs, const std::string& path);

// On another rank than the leader: what the leader has opened, whose manifest has this digest. What this rank sees
// otherwise is NotForUs: it says nothing against the checkpoint.
Loaded open_same(base::Vfs& vfs, const std::string& path, const base::Sha256Digest& manifest_sha256);

// As open, for step-N under `directory`; the manifest must be of that step.
Loaded open_step(base::Vfs& vfs, const std::string& directory, int64_t step);

// How a checkpoint is verified in full: by whoever opened it, or by several ranks together. Throws as
// Loaded::verify does.
using Verify = std::function<void(const Loaded&)>;
inline void verify_alone(const Loaded& loaded) { loaded.verify(); }

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
  Bytes bytes;
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
