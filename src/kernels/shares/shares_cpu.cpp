#include "kernels/shares/shares.h"

#include <algorithm>
#include <cstring>

#include "kernels/math/coords.h"

namespace pleat::kernels {
namespace {

using Tensors = std::span<const Arg>;

std::byte* row_of(const Arg& packed, int64_t row) {
  return static_cast<std::byte*>(packed.data) + row * packed.dim(1) * tensor::size_of(packed.dtype);
}

// The place of tensor i's share in a row.
std::byte* share_in(std::byte* row, Tensors tensors, size_t i, int64_t num_ranks) {
  return row + share_row_elements(tensors.first(i), num_ranks) * tensor::size_of(tensors[i].dtype);
}

// Share `rank` of tensor i into its place in `row`.
void pack(Tensors tensors, size_t i, int64_t rank, int64_t num_ranks, std::byte* row) {
  const Arg& tensor = tensors[i];
  const int64_t size = tensor::size_of(tensor.dtype), n = tensor.size();
  const Piece piece = piece_of(n, program::share_of(n, num_ranks), rank);
  std::byte* to = share_in(row, tensors, i, num_ranks);
  if (piece.count > 0)
    std::memcpy(to, static_cast<const std::byte*>(tensor.data) + piece.first * size,
                static_cast<size_t>(piece.count * size));
  std::memset(to + piece.count * size, 0,
              static_cast<size_t>((program::share_stride(n, num_ranks) - piece.count) * size));
}

void run_pack_shares(const Invocation& call) {
  const signature::pack_shares::BackwardWeight<Arg> args(call.args);
  const int64_t n = args.packed.dim(0);
  call.pool->for_each_tile(static_cast<int64_t>(args.g.size()) * n, [&](int64_t tile) {
    pack(args.g, static_cast<size_t>(tile / n), tile % n, n, row_of(args.packed, tile % n));
  });
}

void run_pack_own(const Invocation& call) {
  const signature::pack_own::Update<Arg> args(call.args);
  const int64_t n = call.integer("ranks"), rank = coordinate(args.coords, call);
  call.pool->for_each_tile(static_cast<int64_t>(args.w.size()), [&](int64_t tile) {
    pack(args.w, static_cast<size_t>(tile), rank, n, row_of(args.packed, 0));
  });
}

void run_unpack_shares(const Invocation& call) {
  const signature::unpack_shares::Update<Arg> args(call.args);
  const int64_t n = args.packed.dim(0), size = tensor::size_of(args.packed.dtype);
  call.pool->for_each_tile(static_cast<int64_t>(args.w.size()) * n, [&](int64_t tile) {
    const size_t i = static_cast<size_t>(tile / n);
    const int64_t rank = tile % n, elements = args.w[i].size();
    const Piece piece = piece_of(elements, program::share_of(elements, n), rank);
    if (piece.count > 0)
      std::memcpy(static_cast<std::byte*>(args.w[i].data) + piece.first * size,
                  share_in(row_of(args.packed, rank), args.w, i, n), static_cast<size_t>(piece.count * size));
  });
}

constexpr Binding kTable[] = {
    row<signature::pack_shares::BackwardWeight, run_pack_shares>(),
    row<signature::pack_own::Update, run_pack_own>(),
    row<signature::unpack_shares::Update, run_unpack_shares>(),
};

}  // namespace

std::span<const Binding> shares_bindings() { return kTable; }

}  // namespace pleat::kernels
