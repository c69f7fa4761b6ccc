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

template <template <class> class Args>
Kernel resolve_fill_zero(const Invocation&) {
  return run_fill_zero<Args>;
}

}  // namespace

std::span<const Binding> rows_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr Binding rows[] = {
      {KernelKind::add_rows, Phase::Forward, resolve_add_rows_forward},
      {KernelKind::add_rows, Phase::BackwardWeight, resolve_add_rows_backward_weight},
      {KernelKind::take_rows, Phase::Forward, resolve_take_rows_forward},
      {KernelKind::take_rows, Phase::BackwardInput, resolve_take_rows_backward_input},
      {KernelKind::columns, Phase::Forward, resolve_columns_forward},
      {KernelKind::columns, Phase::BackwardInput, resolve_columns_backward_input},
      {KernelKind::fill_zero, Phase::Forward, resolve_fill_zero<signature::fill_zero::Forward>},
      {KernelKind::fill_zero, Phase::BackwardInput, resolve_fill_zero<signature::fill_zero::BackwardInput>},
      {KernelKind::fill_zero, Phase::BackwardWeight, resolve_fill_zero<signature::fill_zero::BackwardWeight>},
      {KernelKind::fill_zero, Phase::Update, resolve_fill_zero<signature::fill_zero::Update>},
      {KernelKind::narrow, Phase::Forward, resolve_narrow},
      {KernelKind::narrow, Phase::BackwardInput, resolve_narrow},
      {KernelKind::narrow, Phase::BackwardWeight, resolve_narrow},
      {KernelKind::split_heads, Phase::Forward, resolve_split_heads_forward},
      {KernelKind::split_heads, Phase::BackwardInput, resolve_split_heads_backward_input},
      {KernelKind::merge_heads, Phase::Forward, resolve_merge_heads_forward},
      {KernelKind::merge_heads, Phase::BackwardInput, resolve_merge_heads_backward_input},
  };
  return rows;
}

}  // namespace pleat::kernels
