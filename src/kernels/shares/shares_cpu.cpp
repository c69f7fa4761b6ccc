#include "kernels/shares/shares.h"

#include <algorithm>
#include <cstring>

#include "kernels/math/coords.h"
#include "program/shares.h"

namespace pleat::kernels {
namespace {

// The tensors are arguments [first, end) of a call.
struct Tensors {
  size_t first = 0, end = 0;
  int64_t count() const { return static_cast<int64_t>(end - first); }
};

int64_t row_elements(const Invocation& call, Tensors t, int64_t num_ranks) {
  int64_t sum = 0;
  for (size_t i = t.first; i < t.end; ++i) sum += program::share_stride(call[i].size(), num_ranks);
  return sum;
}

// Where the share of tensor i begins in a row.
int64_t begin_in_row(const Invocation& call, Tensors t, size_t i, int64_t num_ranks) {
  return row_elements(call, {t.first, i}, num_ranks);
}

// Share `rank` of tensor i into its place in `row`.
void pack(const Invocation& call, Tensors t, size_t i, int64_t rank, int64_t num_ranks, std::byte* row) {
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
  const Tensors t{0, call.args.size() - 1};
  const Arg& packed = call[t.end];
  const int64_t n = packed.dim(0);
  call.pool->for_each_tile(t.count() * n, [&](int64_t tile) {
    pack(call, t, t.first + static_cast<size_t>(tile / n), tile % n, n, row_of(packed, tile % n));
  });
}

void run_pack_own(const Invocation& call) {
  const Tensors t{1, call.args.size() - 1};
  const Arg& packed = call[t.end];
  const int64_t n = call.integer("ranks"), rank = coordinate("pack_own", call, call[0]);
  call.pool->for_each_tile(t.count(), [&](int64_t tile) {
    pack(call, t, t.first + static_cast<size_t>(tile), rank, n, row_of(packed, 0));
  });
}

void run_unpack_shares(const Invocation& call) {
  const Tensors t{1, call.args.size()};
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

void require_row(const char* kernel, const Invocation& call, Tensors t, const Arg& packed,
                 int64_t num_ranks) {
  if (num_ranks < 1) base::fail("[{}] {} ranks, needed 1 or more", kernel, num_ranks);
  for (size_t i = t.first; i < t.end; ++i)
    require_dtype(kernel, fmt::format("tensor {}", i - t.first), call[i], packed.dtype);
  const int64_t row = row_elements(call, t, num_ranks);
  if (packed.dim(1) != row)
    base::fail(
        "[{}] argument 'packed' has rows of {} elements, needed {}: the shares of {} tensors over {} "
        "ranks",
        kernel, packed.dim(1), row, t.count(), num_ranks);
}

Kernel resolve_pack_shares(const Invocation& call) {
  const Tensors t{0, call.args.size() - 1};
  const Arg& packed = call[t.end];
  require_rank("pack_shares", "packed", packed, 2);
  require_row("pack_shares", call, t, packed, packed.dim(0));
  return run_pack_shares;
}

Kernel resolve_pack_own(const Invocation& call) {
  const Tensors t{1, call.args.size() - 1};
  const Arg& packed = call[t.end];
  require_coords("pack_own", call, call[0]);
  require_rank("pack_own", "packed", packed, 2);
  require_row("pack_own", call, t, packed, call.integer("ranks"));
  require_shape("pack_own", "packed", packed, {1, packed.dim(1)});
  return run_pack_own;
}

Kernel resolve_unpack_shares(const Invocation& call) {
  require_rank("unpack_shares", "packed", call[0], 2);
  require_row("unpack_shares", call, {1, call.args.size()}, call[0], call[0].dim(0));
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
