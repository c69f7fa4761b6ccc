// Linked in place of the other files of this folder when the build has no CUDA.
#include "base/error.h"
#include "comm/windows/windows.h"

namespace pleat::comm {
namespace {

[[noreturn]] void refuse() {
  base::fail("this build has no CUDA: ranks cannot share a GPU's memory; build the preset \"cuda\"");
}

}  // namespace

std::unique_ptr<SharedWindows> share_among_gpus(Communicator&, std::byte*) { refuse(); }
std::string why_out_of_reach(Communicator&) { refuse(); }
std::unique_ptr<Communicator> make_window_group(std::string, std::vector<int>, SharedWindows&, void*, double,
                                                RankFlight&) {
  refuse();
}

}  // namespace pleat::comm
