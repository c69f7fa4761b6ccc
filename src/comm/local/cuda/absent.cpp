// Linked in place of the other files of this folder when the build has no CUDA.
#include "base/error.h"
#include "comm/local/mover.h"

namespace pleat::comm::local {

std::unique_ptr<Mover> device_mover() {
  base::fail("this build has no CUDA: ranks cannot share a GPU's memory; build the preset \"cuda\"");
}

}  // namespace pleat::comm::local
