#include "comm/call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace pleat::comm {
namespace {

uint64_t mix(uint64_t hash, uint64_t word) {
  hash ^= word + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdULL;
  return hash ^ (hash >> 32);
}

std::string described_at(const Signature& s, int world_rank) {
  return fmt::format("rank {} calls {} for stage '{}'", world_rank, describe(s), s.stage);
}

}  // namespace

std::string_view name_of(Reduce reduce) {
  switch (reduce) {
    case Reduce::Sum:
      return "sum";
    case Reduce::Max:
      return "max";
    case Reduce::Min:
      return "min";
  }
  return "?";
}

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::AllReduce:
      return "all_reduce";
    case Operation::ReduceScatter:
      return "reduce_scatter";
    case Operation::AllGather:
      return "all_gather";
    case Operation::AllToAll:
      return "all_to_all";
    case Operation::Broadcast:
      return "broadcast";
    case Operation::Shift:
      return "shift";
    case Operation::Barrier:
      return "barrier";
    case Operation::Send:
      return "send";
    case Operation::Receive:
      return "receive";
    case Operation::SendReceive:
      return "send_receive";
  }
  return "?";
}

uint64_t shape_hash(const Call& call) {
  uint64_t hash = mix(0, static_cast<uint64_t>(call.operation));
  switch (call.operation) {
    case Operation::AllReduce:
    case Operation::ReduceScatter:
      hash = mix(mix(hash, static_cast<uint64_t>(call.dtype)), static_cast<uint64_t>(call.reduce));
      hash = mix(hash, call.in.size());
      break;
    case Operation::AllGather:
    case Operation::Shift:
      hash = mix(hash, call.out.size());
      break;
    case Operation::Broadcast:
      hash = mix(mix(hash, call.out.size()), static_cast<uint64_t>(call.peer));
      break;
    case Operation::AllToAll:
    case Operation::Barrier:
      return hash;
    case Operation::Send:
    case Operation::Receive:
    case Operation::SendReceive:
      return mix(mix(hash, call.in.size()), call.out.size());
  }
  for (const int64_t count : call.send.counts) hash = mix(hash, static_cast<uint64_t>(count));
  return hash;
}

Signature signature_of(const Call& call) {
  Signature s;
  s.sequence = call.sequence;
  s.shape_hash = shape_hash(call);
  s.operation = call.operation;
  s.dtype = call.dtype;
  s.reduce = call.reduce;
  s.root = call.operation == Operation::Broadcast ? call.peer : -1;
  const bool gather = call.operation == Operation::AllGather || call.operation == Operation::Broadcast;
  s.bytes = static_cast<int64_t>(gather ? call.out.size() : call.in.size());
  s.stage = call.stage;
  s.counts.assign(call.send.counts.begin(), call.send.counts.end());
  if (call.operation == Operation::AllToAll)
    s.counts.insert(s.counts.end(), call.receive.counts.begin(), call.receive.counts.end());
  return s;
}

std::string describe(const Signature& s) {
  std::string text(name_of(s.operation));
  if (s.operation == Operation::Barrier) return text;
  if (s.operation == Operation::AllReduce || s.operation == Operation::ReduceScatter)
    text += fmt::format(" {} {}", name_of(s.reduce), tensor::name_of(s.dtype));
  text += fmt::format(" {} bytes", s.bytes);
  if (s.operation == Operation::Broadcast) text += fmt::format(" from member {}", s.root);
  if ((s.operation == Operation::ReduceScatter || s.operation == Operation::AllGather) &&
      s.counts.size() <= 16)
    text += fmt::format(" in parts [{}]", fmt::join(s.counts, " "));
  return text;
}

std::string first_difference(std::span<const Signature* const> by_rank, std::span<const int> world_ranks,
                             std::string_view group, CompareStage compare_stage) {
  const Signature& first = *by_rank[0];
  const size_t n = by_rank.size();
  const auto where = [&] {
    return fmt::format("group '{}' (ranks {}), call {}", group, fmt::join(world_ranks, " "), first.sequence);
  };
  for (size_t r = 1; r < n; ++r) {
    const Signature& other = *by_rank[r];
    const char* what = other.sequence != first.sequence                                   ? "sequence number"
                       : other.operation != first.operation                               ? "operation"
                       : other.shape_hash != first.shape_hash                             ? "shape"
                       : compare_stage == CompareStage::Yes && other.stage != first.stage ? "stage"
                                                                                          : nullptr;
    if (what == nullptr) continue;
    return fmt::format("{}: ranks {} and {} do not agree on the {}: {} (call {}), {} (call {})", where(),
                       world_ranks[0], world_ranks[r], what, described_at(first, world_ranks[0]),
                       first.sequence, described_at(other, world_ranks[r]), other.sequence);
  }
  if (first.operation != Operation::AllToAll) return "";
  for (size_t from = 0; from < n; ++from) {
    for (size_t to = 0; to < n; ++to) {
      const int64_t sent = by_rank[from]->counts[to], awaited = by_rank[to]->counts[n + from];
      if (sent != awaited)
        return fmt::format(
            "{}: all_to_all for stage '{}': rank {} sends {} bytes to rank {}, which awaits {} bytes",
            where(), first.stage, world_ranks[from], sent, world_ranks[to], awaited);
    }
  }
  return "";
}

}  // namespace pleat::comm
