#include "cost/nccl_memory.h"

#include <algorithm>
#include <map>
#include <utility>

namespace pleat::cost {

using namespace program;

namespace {

// What the calls of a group on a lane connect.
struct NcclUse {
  int64_t neighbours = 0;  // of collectives: of this rank in rings and trees
  int64_t peers = 0;       // of messages
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
      // A tree inside a node is a chain: it hears from both sides, of which the ring's is one.
      use.neighbours = std::min<int64_t>(2, num_ranks - 1);
      break;
    default:
      use.neighbours = std::max<int64_t>(use.neighbours, 1);
  }
}

int64_t rounded_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

int64_t bytes_of(const NcclUse& use, const NcclSizes& s) {
  // What it receives into, and what its sender keeps for it.
  const int64_t connection = rounded_up(s.simple_bytes + s.ll_bytes + s.ll128_bytes, s.granule) + s.granule;
  constexpr int64_t kPeersOfAChannel = 8;
  const int64_t turns = std::max<int64_t>(1, (use.peers + kPeersOfAChannel - 1) / kPeersOfAChannel);
  const int64_t of_a_peer = std::max<int64_t>(1, s.message_channels / turns);
  const int64_t collectives = connection * s.collective_channels * use.neighbours,
                messages = connection * of_a_peer * use.peers;
  return s.group_bytes + static_cast<int64_t>(s.collectives_over_sum * static_cast<double>(collectives)) +
         messages;
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
