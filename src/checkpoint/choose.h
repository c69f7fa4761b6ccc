// Which checkpoint of a directory is meant: the newest that verifies, a step, or the best by validation loss.
// Everything that reads a run chooses here.
//
// A reader holds what it reads: a shared lock on its MANIFEST, which whoever prunes respects (retain.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/posix_vfs.h"
#include "checkpoint/load.h"

namespace pleat::checkpoint {

struct Which {
  enum Kind { Newest, Best, Step } kind = Newest;
  int64_t step = 0;
};
// "" or "newest", "best", or a number of steps; throws for anything else.
Which parse_which(const std::string& text);

// A lock on one checkpoint, given back at the end.
class Hold {
 public:
  Hold() = default;
  Hold(base::Vfs& vfs, int file, std::string path) : vfs_(&vfs), file_(file), path_(std::move(path)) {}
  Hold(Hold&& other) noexcept : vfs_(other.vfs_), file_(other.file_), path_(std::move(other.path_)) {
    other.file_ = -1;
  }
  Hold& operator=(Hold&&) = delete;
  ~Hold();
  bool held() const { return file_ >= 0; }

 private:
  base::Vfs* vfs_ = nullptr;
  int file_ = -1;
  std::string path_;
};

struct Chosen {
  Loaded loaded;  // verified in full
  std::vector<Skipped> skipped;
  Hold hold;
  // What a reader tells: the step, what was passed over and why, that it could not be held. One line each.
  std::vector<std::string> remarks() const;
};

// Nothing when there is no checkpoint at all (and Newest is asked). Where checkpoints are there and the one
// asked for does not verify, or none does, throws and says what is wrong with each. What is no damage (damage.h)
// stops the choice: going on from an older one would lose steps. Changes nothing.
std::optional<Chosen> choose_if_any(base::Vfs& vfs, const std::string& directory, const Which& which = {},
                                    const Verify& verify = verify_alone);
// The same; that there is none is an error.
Chosen choose(base::Vfs& vfs, const std::string& directory, const Which& which = {},
              const Verify& verify = verify_alone);

// A checkpoint together with the disk it is read from, for readers that keep it.
struct Reading {
  base::PosixVfs vfs;
  Chosen chosen;
  Reading(const std::string& directory, const Which& which, const Verify& verify = verify_alone)
      : chosen(choose(vfs, directory, which, verify)) {}
  Reading(const Reading&) = delete;
};

}  // namespace pleat::checkpoint
