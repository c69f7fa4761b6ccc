// Whether the ranks of a run see one folder of checkpoints, asked before there is anything to lose.
#pragma once

#include <chrono>
#include <string>

#include "base/vfs.h"
#include "checkpoint/team.h"

namespace pleat::checkpoint {

// All ranks call it. The leader puts a random word into `directory`, which exists where it runs; the others read it
// there, and it is removed. Where one does not see it within `patience` (hosts that share a disk may see a new folder
// late), all throw, naming the rank.
void require_shared(base::Vfs& vfs, const std::string& directory, Peers& peers,
                    std::chrono::milliseconds patience = std::chrono::seconds(20));

}  // namespace pleat::checkpoint
