// A rank's place in a group, for kernels that hold one piece of a tensor cut over that group.
//
// The argument `coords` is i64[program::kNumGroups]; the attribute `group` says which of its numbers the
// kernel goes by. One program serves all ranks, so the number is known only when the kernel runs.
#pragma once

#include <algorithm>

#include "kernels/contract.h"

namespace pleat::kernels {

inline void require_coords(const Arg& coords, const Invocation& call) {
  if (!coords.present) return;
  require_type(coords, tensor::Dtype::I64);
  require_shape(coords, {program::kNumGroups});
  const double group = call.attr("group");
  if (!(group >= 0 && group < program::kNumGroups))
    refuse(coords, "attribute 'group' is {}, needed a group below {}", group, program::kNumGroups);
}

inline int64_t coordinate(const Arg& coords, const Invocation& call) {
  const int64_t place = coords.as<int64_t>()[call.integer("group")];
  if (place < 0)
    refuse(coords, "the place in group {} is {}, needed 0 or more", call.integer("group"), place);
  return place;
}

// An argument that holds one piece of a tensor has as many elements as the attribute `shard` says.
inline void require_shard(const Arg& arg, const Invocation& call) {
  if (arg.size() != call.integer("shard"))
    refuse(arg, "argument '{}' has {} elements, needed {} as attribute 'shard' says", arg.name, arg.size(),
           call.integer("shard"));
}

// Elements [first, first + count) of a tensor of `elements`, in pieces of `shard`: the piece of place c.
// Behind the tensor's end a piece is padding and `count` is short.
struct Piece {
  int64_t first = 0, count = 0;
};
inline Piece piece_of(int64_t elements, int64_t shard, int64_t place) {
  const int64_t first = std::min(elements, place * shard);
  return {first, std::min(shard, elements - first)};
}

}  // namespace pleat::kernels
