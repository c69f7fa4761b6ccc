// The rows of this folder in the registry, and the kernel that has no arithmetic at all.
#include "kernels/rows/rows.h"

#include <cstring>

#include "kernels/math/tiles.h"

namespace pleat::kernels {
namespace {

// Args: the row of any phase.
template <template <class> class Args>
void run_fill_zero(const Invocation& call) {
  const Args<Arg> args(call.args);
  auto* to = static_cast<std::byte*>(args.y.data);
  const Tiling tiling{args.y.size() * tensor::size_of(args.y.dtype), 1 << 17};
  call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    const int64_t begin = tiling.begin(tile_idx);
    std::memset(to + begin, 0, static_cast<size_t>(tiling.end(tile_idx) - begin));
  });
}

constexpr Binding kTable[] = {
    row<signature::fill_zero::Forward, run_fill_zero<signature::fill_zero::Forward>>(),
    row<signature::fill_zero::BackwardInput, run_fill_zero<signature::fill_zero::BackwardInput>>(),
    row<signature::fill_zero::BackwardWeight, run_fill_zero<signature::fill_zero::BackwardWeight>>(),
    row<signature::fill_zero::Update, run_fill_zero<signature::fill_zero::Update>>(),
};

}  // namespace

std::span<const Binding> rows_bindings() { return kTable; }

}  // namespace pleat::kernels
