// A rank's place in a group, for kernels that hold one piece of a tensor cut over that group.
//
// The argument `coords` is i64[program::kNumGroups]; the attribute `group` says which of its numbers the
// kernel goes by. One program serves all ranks, so the number is known only when the kernel runs.
#pragma once

#include <algorithm>

#include "kernels/math/require.h"

namespace pleat::kernels {

inline void require_coords(std::string_view kernel, const Invocation& call, const Arg& coords) {
  if (!coords.present) return;
  require_dtype(kernel, "coords", coords, tensor::Dtype::I64);
  require_shape(kernel, "coords", coords, {program::kNumGroups});
  const double group = call.attr("group");
  if (!(group >= 0 && group < program::kNumGroups))
    base::fail("[{}] attribute 'group' is {}, needed a group below {}", kernel, group, program::kNumGroups);
}

inline int64_t coordinate(std::string_view kernel, const Invocation& call, const Arg& coords) {
  const int64_t place = coords.as<int64_t>()[call.integer("group")];
  if (place < 0)
    base::fail("[{}] the place in group {} is {}, needed 0 or more", kernel, call.integer("group"), place);
  return place;
}

// An argument that holds one piece of a tensor has as many elements as the attribute `shard` says.
inline void require_shard(std::string_view kernel, std::string_view argument, const Invocation& call,
                          const Arg& arg) {
  if (arg.size() != call.integer("shard"))
    base::fail("[{}] argument '{}' has {} elements, needed {} as attribute 'shard' says", kernel, argument,
               arg.size(), call.integer("shard"));
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
