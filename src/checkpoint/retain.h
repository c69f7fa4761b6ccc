// Removing what is no longer needed from a directory of checkpoints, without a moment at which a crash could
// show part of a checkpoint. Failures become warnings: untidiness must not stop a run.
#pragma once

#include <string>
#include <vector>

#include "base/vfs.h"
#include "checkpoint/directory.h"
#include "checkpoint/load.h"

namespace pleat::checkpoint {

// A name "<stem>.tmp-I" that `taken` does not hold; adds it there.
std::string free_leftover_name(const std::string& stem, std::vector<std::string>& taken);

// Removes what cut-short saves left. The directory is fsynced first: a removal must not reach the disk before
// the rename that made it harmless.
void remove_leftovers(base::Vfs& vfs, const std::string& directory, const std::vector<std::string>& names,
                      std::vector<std::string>& warnings);

// Replaces the small file `name`, which only points at a checkpoint. A failure is a warning.
void replace_hint(base::Vfs& vfs, const std::string& directory, const std::string& name,
                  const std::string& text, std::vector<std::string>& taken,
                  std::vector<std::string>& warnings);

// Removes checkpoints older than the newest `keep - 1` verified ones before `step`, which was itself just
// verified. One of those is read in full and the others down to lengths; if fewer verify, nothing is removed.
// The best (best.h) stays, and so does what somebody reads (choose.h), until the next call.
// Returns the removed steps. `verify`: how one is read in full.
std::vector<int64_t> remove_old(base::Vfs& vfs, const std::string& directory, int64_t step, int64_t keep,
                                std::vector<std::string>& warnings, const Verify& verify = verify_alone);

// What a stop between a save and its tidying up left: leftovers, and one checkpoint more than are kept. `step`
// is the newest one that verifies.
void tidy(base::Vfs& vfs, const std::string& directory, int64_t step, int64_t keep,
          std::vector<std::string>& warnings, const Verify& verify = verify_alone);

}  // namespace pleat::checkpoint
