// How a run begins: alone in its folder, and from its newest checkpoint, from given weights, or anew. Nothing
// is written into the folder before all of this is settled.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/posix_vfs.h"
#include "checkpoint/load.h"
#include "run/lock.h"
#include "run/place.h"
#include "runtime/crew.h"
#include "train/loop.h"

namespace pleat::train {

struct Start {
  std::unique_ptr<base::PosixVfs> vfs;  // what `from` is read from
  // Of the leader. The second one where the checkpoints lie outside the run folder.
  std::optional<run::Lock> lock, checkpoint_lock;
  std::vector<run::Place> places;  // what it works in
  bool is_signed = false;
  std::optional<checkpoint::Loaded> from;  // nothing: the run starts anew, or from given weights
  std::optional<config::Config> before;    // what the run was asked before; of the leader
  std::optional<LoopResult> done;  // the run had ended before: nothing is left to do, and nothing changed

  // Says in the folders who works there. Only from here on is anything written into them.
  void sign();
  // Throws where one of the folders was moved or replaced, or its lock taken away: before a write by name.
  void require_places() const;
};

// All ranks call it. The leader takes the lock, finds the newest checkpoint that verifies, which all ranks do
// together, and judges what changed since the run was asked last (Key::resume); the others then open what it found.
// Writes nothing. `asked`: not
// prepared, not resolved.
Start begin(const config::Config& asked, const LoopOptions& options, const runtime::Crew& crew);

// What changed between what a run was asked before and now that needs --allow-change, one line each.
std::vector<std::string> changes_that_need_the_flag(const config::Config& before, const config::Config& now);

// What was asked otherwise than before, one line each; what followed from it is left out.
std::vector<std::string> asked_otherwise(const config::Config& before, const config::Config& now);

}  // namespace pleat::train
