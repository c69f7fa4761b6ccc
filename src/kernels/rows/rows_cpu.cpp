// The rows of this folder in the registry, and the kernel that has no arithmetic at all.
#include "kernels/rows/rows.h"

#include <cstring>

#include "kernels/math/tiles.h"

namespace pleat::kernels {
namespace {

void run_fill_zero(const Invocation& call) {
  auto* to = static_cast<std::byte*>(call[0].data);
  const Tiling tiling{call[0].size() * tensor::size_of(call[0].dtype), 1 << 17};
  call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    const int64_t begin = tiling.begin(tile_idx);
    std::memset(to + begin, 0, static_cast<size_t>(tiling.end(tile_idx) - begin));
  });
}

}  // namespace

Kernel resolve_fill_zero(const Invocation&) { return run_fill_zero; }

std::span<const Binding> rows_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr Binding rows[] = {
      {KernelKind::add_rows, Phase::Forward, resolve_add_rows_forward},
      {KernelKind::add_rows, Phase::BackwardWeight, resolve_add_rows_backward_weight},
      {KernelKind::take_rows, Phase::Forward, resolve_take_rows},
      {KernelKind::take_rows, Phase::BackwardInput, resolve_take_rows},
      {KernelKind::columns, Phase::Forward, resolve_columns_forward},
      {KernelKind::columns, Phase::BackwardInput, resolve_columns_backward_input},
      {KernelKind::fill_zero, Phase::Forward, resolve_fill_zero},
      {KernelKind::fill_zero, Phase::BackwardInput, resolve_fill_zero},
      {KernelKind::fill_zero, Phase::BackwardWeight, resolve_fill_zero},
      {KernelKind::fill_zero, Phase::Update, resolve_fill_zero},
      {KernelKind::split_heads, Phase::Forward, resolve_split_heads},
      {KernelKind::split_heads, Phase::BackwardInput, resolve_split_heads},
      {KernelKind::merge_heads, Phase::Forward, resolve_merge_heads},
      {KernelKind::merge_heads, Phase::BackwardInput, resolve_merge_heads},
  };
  return rows;
}

}  // namespace pleat::kernels
