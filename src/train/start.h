// How a run begins: alone in its folder, and from its newest checkpoint, from given weights, or anew. Nothing
// is written into the folder before all of this is settled.
#pragma once

#include <memory>
#include <optional>

#include "base/posix_vfs.h"
#include "checkpoint/load.h"
#include "run/lock.h"
#include "train/crew.h"
#include "train/loop.h"

namespace pleat::train {

struct Start {
  std::unique_ptr<base::PosixVfs> vfs;     // what `from` is read from
  std::optional<run::Lock> lock;           // of the leader
  std::optional<checkpoint::Loaded> from;  // nothing: the run starts anew, or from given weights
  std::optional<config::Config> before;    // what the run was asked before; of the leader
  std::optional<LoopResult> done;  // the run had ended before: nothing is left to do, and nothing changed
};

// All ranks call it. The leader takes the lock, reads and verifies the newest checkpoint, and judges what changed
// since the run was asked last (Key::resume); the others then open what it found. Writes nothing. `asked`: not
// prepared, not resolved.
Start begin(const config::Config& asked, const LoopOptions& options, const Crew& crew);

// What changed between what a run was asked before and now that needs --allow-change, one line each.
std::vector<std::string> changes_that_need_the_flag(const config::Config& before, const config::Config& now);

// What was asked otherwise than before, one line each; what followed from it is left out.
std::vector<std::string> asked_otherwise(const config::Config& before, const config::Config& now);

// Checkpoints outside the run folder do not move with it: says in there which run they belong to. Of a resolved
// configuration.
void own_checkpoints(const config::Config& used);

}  // namespace pleat::train
