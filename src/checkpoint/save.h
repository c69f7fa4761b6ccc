// Writing a checkpoint so that no moment of a crash, a kill, a power loss or a full disk can cost an older
// one.
//
// 1. A temporary directory step-N.tmp-I gets shards, then MANIFEST; each file is fsynced and closed, then the
//    directory is fsynced. Checksums come from live memory.
// 2. All of it is read back and verified.
// 3. It is renamed to step-N and the parent is fsynced: the commit point.
// 4. LATEST is replaced: a hint for people, nothing reads it to decide. BEST too, if this one is.
// 5. Old checkpoints go: renamed away, fsynced, then removed, so that a step-N never shows in part.
//
// A failed fsync is never repeated on the same file: the file is abandoned and a new one written from memory.
// What fails before the commit point throws and leaves the older checkpoints as they were; what fails after
// it is a warning, because the new checkpoint stands. One process at a time may save into a directory.
#pragma once

#include <optional>

#include "base/vfs.h"
#include "checkpoint/state.h"

namespace pleat::checkpoint {

struct SaveOptions {
  int64_t keep = 2;                            // newest verified checkpoints that stay, at least 2
  int64_t max_shard_bytes = int64_t{1} << 30;  // of tensor data in one file
  int64_t block_bytes = int64_t{1} << 20;      // of tensor data under one checksum
  int max_file_attempts = 3;                   // new files tried after a failed fsync or close
  // Of this state, where the best one is to be kept: it becomes the best (best.h) if it is less than that's.
  std::optional<double> valid_loss = {};
};

struct SaveResult {
  std::string path;
  int64_t step = 0;
  std::string state_sha256;
  std::string manifest_sha256;
  int64_t num_bytes = 0;       // of all files
  bool already_there = false;  // step-N existed with the same state; nothing was written
  std::vector<int64_t> removed_steps;
  std::vector<std::string> warnings;  // for the log; the checkpoint is durable all the same
};

// The tensors must not change until save returns; a change is found by the read-back and throws. Saving a
// step that exists with another state is bad input. A damaged step-N is replaced, with a warning.
SaveResult save(base::Vfs& vfs, const std::string& directory, const StateView& state,
                const SaveOptions& options);

}  // namespace pleat::checkpoint
