#include "cost/nccl_memory.h"

#include <algorithm>
#include <map>
#include <utility>

namespace pleat::cost {

using namespace program;

namespace {

// What the calls of a group on a lane connect.
struct NcclUse {
  bool ring = false, tree = false;
  int64_t peers = 0;
};

void note_use(NcclUse& use, const Stage& stage, int64_t num_ranks) {
  if (class_of(stage.op) == OpClass::Transfer) {
    use.peers =
        std::max<int64_t>(use.peers, std::min<int64_t>(2, num_ranks - 1));  // the next and the previous
    return;
  }
  switch (kernel_of(stage.op)) {
    case KernelKind::all_to_all:
    case KernelKind::rows_to_experts:
    case KernelKind::rows_to_tokens:
      use.peers = num_ranks - 1;
      break;
    case KernelKind::ring_shift:
      use.peers = std::max<int64_t>(use.peers, std::min<int64_t>(2, num_ranks - 1));
      break;
    case KernelKind::all_reduce:
      use.ring = use.tree = true;
      break;
    default:
      use.ring = true;
  }
}

int64_t rounded_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

int64_t bytes_of(const NcclUse& use, const NcclSizes& s) {
  const int64_t buffer = rounded_up(s.simple_bytes + s.ll_bytes + s.ll128_bytes, s.granule);
  // A rank hears from one neighbour in a ring, from two in a tree.
  const int64_t collective = s.collective_channels * ((use.ring ? 1 : 0) + (use.tree ? 2 : 0));
  constexpr int64_t kPeersOfAChannel = 8;
  const int64_t turns = std::max<int64_t>(1, (use.peers + kPeersOfAChannel - 1) / kPeersOfAChannel);
  const int64_t of_a_peer = std::max<int64_t>(1, s.message_channels / turns);
  return s.group_bytes + buffer * (collective + use.peers * of_a_peer);
}

}  // namespace

NcclMemory nccl_memory(const model::Mesh& mesh, const Program& program, const NcclSizes& sizes) {
  std::map<std::pair<Group, std::string>, NcclUse> uses;
  for (const Stage& stage : program.stages) {
    const OpClass kind = class_of(stage.op);
    const int64_t n = mesh.size(stage.group);
    if ((kind != OpClass::Collective && kind != OpClass::Transfer) || n == 1) continue;
    // Messages have one lane, whatever theirs is called.
    const std::string lane =
        kind == OpClass::Transfer ? "" : program.lanes[static_cast<size_t>(stage.lane)].name;
    note_use(uses[{stage.group, lane}], stage, n);
  }
  NcclMemory out;
  if (uses.empty()) return out;
  out.bytes = sizes.group_bytes;  // of all ranks, which makes no calls
  out.num_groups = static_cast<int>(uses.size());
  for (const auto& [key, use] : uses) out.bytes += bytes_of(use, sizes);
  return out;
}

}  // namespace pleat::cost
