// One communication call as data: what the caller asked for, in the form that back ends execute, the flight
// recorder keeps and check mode compares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace pleat::comm {

enum class Reduce : uint8_t { Sum, Max, Min };
enum class Operation : uint8_t {
  AllReduce,
  ReduceScatter,
  AllGather,
  AllToAll,
  Broadcast,
  Shift,
  Barrier,
  Send,
  Receive,
  SendReceive,
};

std::string_view name_of(Reduce reduce);        // "sum"
std::string_view name_of(Operation operation);  // "all_reduce"

// Where each rank's part lies in a buffer, in bytes; both spans have one entry per rank of the group.
struct Parts {
  std::span<const int64_t> counts, offsets;
};

struct Call {
  Operation operation{};
  std::string_view stage{};
  uint64_t sequence = 0;
  std::span<const std::byte> in{};
  std::span<std::byte> out{};
  tensor::Dtype dtype = tensor::Dtype::U8;
  Reduce reduce = Reduce::Sum;
  Parts send{},
      receive{};  // bytes; ReduceScatter and AllGather: `send` is the parts of all ranks, in rank order
  int peer = -1;  // root of a broadcast, receiver of a send or shift, sender of a receive
  int from = -1;  // sender of a Shift or SendReceive
  int tag = 0;
};

// What all ranks of a group must agree on for one collective. `counts` is the send and then the receive
// counts of an all-to-all, for which agreement means counts[i][j] sent == counts[j][i] received; empty
// otherwise.
struct Signature {
  uint64_t sequence = 0;
  uint64_t shape_hash = 0;
  Operation operation{};
  tensor::Dtype dtype{};
  Reduce reduce{};
  int root = -1;
  int64_t bytes = 0;
  std::string stage;
  std::vector<int64_t> counts;
};

Signature signature_of(const Call& call);
uint64_t shape_hash(const Call& call);  // equal on all ranks that agree; an all-to-all's counts are not in it

enum class CompareStage : bool { No, Yes };
// "" when all agree, or else the first difference: which ranks, what each was calling, sizes.
std::string first_difference(std::span<const Signature* const> by_rank, std::span<const int> world_ranks,
                             std::string_view group, CompareStage compare_stage);

// "all_reduce sum f32 4096 bytes", the way tables and errors show a call.
std::string describe(const Signature& signature);

}  // namespace pleat::comm
