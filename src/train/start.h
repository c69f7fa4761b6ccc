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
  std::optional<checkpoint::Loaded> from;  // nothing: the run starts anew
  std::optional<LoopResult> done;  // the run had ended before: nothing is left to do, and nothing changed
};

// All ranks call it. The leader takes the lock, writes the starting weights where there are some and no
// checkpoint is there yet, reads and verifies the newest checkpoint, and judges what changed since the run was
// asked last (Key::resume); the others then open what it found. `asked`: not prepared, not resolved.
Start begin(const config::Config& asked, const LoopOptions& options, const Crew& crew);

// What changed between what a run was asked before and now that needs --allow-change, one line each.
std::vector<std::string> changes_that_need_the_flag(const config::Config& before, const config::Config& now);

}  // namespace pleat::train
