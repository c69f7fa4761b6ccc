// Stands in where the project was configured without NCCL.
#include "base/error.h"
#include "comm/nccl/nccl_group.h"

namespace pleat::comm {
namespace {

[[noreturn]] void refuse() {
  base::fail("NCCL is not built in: configure with PLEAT_NCCL=ON on a machine with CUDA and NCCL");
}

}  // namespace

bool nccl_is_built_in() { return false; }
int nccl_version() { return 0; }
std::string nccl_description() { return "not built in"; }
NcclId make_nccl_id() { refuse(); }
std::unique_ptr<NcclWorld> make_nccl_world(const NcclId&, int, int) { refuse(); }

}  // namespace pleat::comm
