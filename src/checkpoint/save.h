// Writing a checkpoint so that no moment of a crash, a kill, a power loss or a full disk can cost an older
// one. Several ranks write one together: each the bytes it owns, into files of its own, all at the same time.
//
// 1. Every rank digests its share from live memory. Rank 0 gathers which slices of which tensors there are.
// 2. A temporary directory step-N.tmp-I gets the shards of all ranks; each file is fsynced and closed by its
//    writer. Checksums come from live memory.
// 3. All of it is read back and verified, every rank some tensors, whoever wrote them. This gives the digests of
//    tensors that lie on several ranks.
// 4. Rank 0 writes MANIFEST, fsyncs it and the directory, renames that to step-N and fsyncs the parent: the
//    commit point.
// 5. LATEST is replaced: a hint for people, nothing reads it to decide. BEST too, if this one is.
// 6. Old checkpoints go: renamed away, fsynced, then removed, so that a step-N never shows in part.
//
// A failed fsync is never repeated on the same file: the file is abandoned and a new one written from memory.
// What fails before the commit point, on whichever rank, is thrown by all ranks with its name, and leaves the
// older checkpoints as they were; what fails after it is a warning, because the new checkpoint stands. One run
// at a time may save into a directory.
//
// No rank needs memory beyond its own state, a few blocks, and the table of contents.
#pragma once

#include <optional>

#include "base/vfs.h"
#include "checkpoint/share.h"
#include "checkpoint/team.h"

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

// All ranks call it, with the same tensors and options, and their disk, which holds the same files for all. The memory
// must not change until save returns; a change is found by the read-back and throws. Saving a step that exists with
// another state is bad input. A damaged step-N (damage.h) is replaced, with a warning. All ranks get the result.
SaveResult save(base::Vfs& vfs, const std::string& directory, const Share& share, const SaveOptions& options,
                Peers& peers);
// The same of one rank that has everything.
SaveResult save(base::Vfs& vfs, const std::string& directory, const StateView& state,
                const SaveOptions& options);

}  // namespace pleat::checkpoint
