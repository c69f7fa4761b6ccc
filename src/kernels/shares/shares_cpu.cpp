#include "kernels/shares/shares.h"

#include <algorithm>
#include <cstring>

#include "kernels/shares/shares_bind.h"

namespace pleat::kernels {
namespace {

// Share `rank` of tensor i into its place in `row`.
void pack(const Invocation& call, ShareTensors t, size_t i, int64_t rank, int64_t num_ranks, std::byte* row) {
  const signature::pack_own::Update args(call.args);
  const Arg& tensor = call[i];
  const int64_t size = tensor::size_of(tensor.dtype), n = tensor.size();
  const Piece piece = piece_of(n, program::share_of(n, num_ranks), rank);
  std::byte* to = row + begin_in_row(call, t, i, num_ranks) * size;
  if (piece.count > 0)
    std::memcpy(to, static_cast<const std::byte*>(tensor.data) + piece.first * size,
                static_cast<size_t>(piece.count * size));
  std::memset(to + piece.count * size, 0,
              static_cast<size_t>((program::share_stride(n, num_ranks) - piece.count) * size));
}

std::byte* row_of(const Arg& packed, int64_t row) {
  return static_cast<std::byte*>(packed.data) + row * packed.dim(1) * tensor::size_of(packed.dtype);
}

void run_pack_shares(const Invocation& call) {
  const signature::pack_shares::BackwardWeight args(call.args);
  const ShareTensors t{0, call.args.size() - 1};
  const Arg& packed = call[t.end];
  const int64_t n = packed.dim(0);
  call.pool->for_each_tile(t.count() * n, [&](int64_t tile) {
    pack(call, t, t.first + static_cast<size_t>(tile / n), tile % n, n, row_of(packed, tile % n));
  });
}

void run_pack_own(const Invocation& call) {
  const ShareTensors t{1, call.args.size() - 1};
  const Arg& packed = call[t.end];
  const int64_t n = call.integer("ranks"), rank = coordinate("pack_own", call, call[0]);
  call.pool->for_each_tile(t.count(), [&](int64_t tile) {
    pack(call, t, t.first + static_cast<size_t>(tile), rank, n, row_of(packed, 0));
  });
}

void run_unpack_shares(const Invocation& call) {
  const ShareTensors t{1, call.args.size()};
  const Arg& packed = call[0];
  const int64_t n = packed.dim(0);
  call.pool->for_each_tile(t.count() * n, [&](int64_t tile) {
    const size_t i = t.first + static_cast<size_t>(tile / n);
    const int64_t rank = tile % n, size = tensor::size_of(packed.dtype), elements = call[i].size();
    const Piece piece = piece_of(elements, program::share_of(elements, n), rank);
    if (piece.count > 0)
      std::memcpy(static_cast<std::byte*>(call[i].data) + piece.first * size,
                  row_of(packed, rank) + begin_in_row(call, t, i, n) * size,
                  static_cast<size_t>(piece.count * size));
  });
}

Kernel resolve_pack_shares(const Invocation& call) {
  check_pack_shares(call);
  return run_pack_shares;
}

Kernel resolve_pack_own(const Invocation& call) {
  check_pack_own(call);
  return run_pack_own;
}

Kernel resolve_unpack_shares(const Invocation& call) {
  check_unpack_shares(call);
  return run_unpack_shares;
}

}  // namespace

std::span<const Binding> shares_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr Binding rows[] = {
      {KernelKind::pack_shares, Phase::BackwardWeight, resolve_pack_shares},
      {KernelKind::pack_own, Phase::Update, resolve_pack_own},
      {KernelKind::unpack_shares, Phase::Update, resolve_unpack_shares},
  };
  return rows;
}

}  // namespace pleat::kernels
