// Checkpoints of a run verified by all of its ranks, each some tensors.
#pragma once

#include <functional>

#include "checkpoint/load.h"
#include "runtime/crew.h"

namespace pleat::train {

// All ranks call it. The leader runs `direct`, to which it gives a way to verify in which every rank takes part; the
// others do their part until that is over. What `direct` throws, all throw. `vfs`: this rank's.
void verify_together(const runtime::Crew& crew, base::Vfs& vfs,
                     const std::function<void(const checkpoint::Verify& verify)>& direct);

}  // namespace pleat::train
