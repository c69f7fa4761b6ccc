// Rows to experts and back: permute and combine, each the transpose of the other.
#include <algorithm>

#include "kernels/dispatch/dispatch.h"
#include "kernels/dispatch/dispatch_rows.h"
#include "kernels/router/type_pair.h"

namespace pleat::kernels {
namespace {

using namespace dispatch;

template <class C>
void copy_rows(const C* from, const int32_t* row_token, int64_t begin, int64_t end, int64_t width, C* rows) {
  for (int64_t r = begin; r < end; ++r) {
    if (row_token[r] < 0) {
      std::fill_n(rows + r * width, width, C(0));
    } else {
      std::copy_n(from + row_token[r] * width, width, rows + r * width);
    }
  }
}

template <class C, class R>
struct PermuteForward {
  static void run(const Invocation& call) {
    const signature::permute::Forward args(call.args);
    const C* x = args.x.as<C>();
    const R* probs = args.probs.as<R>();
    const int32_t *offsets = args.offsets.as<int32_t>(), *row_token = args.row_token.as<int32_t>(),
                  *row_slot = args.row_slot.as<int32_t>();
    C* rows = args.rows.as<C>();
    R* row_probs = args.row_probs.as<R>();
    const int64_t width = args.x.dim(1), k = args.probs.dim(1), num_rows = offsets[args.offsets.dim(0) - 1];
    call.pool->for_each_tile(base::ceil_div(num_rows, kTileRows), [&](int64_t tile) {
      const int64_t begin = tile * kTileRows, end = std::min(num_rows, begin + kTileRows);
      copy_rows(x, row_token, begin, end, width, rows);
      for (int64_t r = begin; r < end; ++r)
        row_probs[r] = row_token[r] < 0 ? R(0) : probs[row_token[r] * k + row_slot[r]];
    });
  }
};

template <class C, class R>
struct PermuteBackward {
  static void run(const Invocation& call) {
    const signature::permute::BackwardInput args(call.args);
    const C* drows = args.drows.as<C>();
    const R* drow_probs = args.drow_probs.as<R>();
    const int32_t* token_row = args.token_row.as<int32_t>();
    C* dx = args.dx.as<C>();
    R* dprobs = args.dprobs.as<R>();
    const bool add = args.dx.into() == Into::Accumulate;
    const int64_t T = args.dx.dim(0), width = args.dx.dim(1), k = args.token_row.dim(1);
    call.pool->for_each_tile(base::ceil_div(T, kTileRows), [&](int64_t tile) {
      C sum[kChunk];
      for (int64_t t = tile * kTileRows; t < std::min(T, (tile + 1) * kTileRows); ++t) {
        const int32_t* row_of = token_row + t * k;
        for (int64_t c = 0; c < width; c += kChunk) {
          const int64_t n = std::min(kChunk, width - c);
          C* __restrict out = dx + t * width + c;
          if (add) {
            sum_rows(drows, row_of, k, width, c, n, sum);
            for (int64_t i = 0; i < n; ++i) out[i] += sum[i];
          } else {
            sum_rows(drows, row_of, k, width, c, n, out);
          }
        }
        for (int64_t s = 0; s < k; ++s) dprobs[t * k + s] = row_of[s] < 0 ? R(0) : drow_probs[row_of[s]];
      }
    });
  }
};

template <class C>
struct CombineForward {
  static void run(const Invocation& call) {
    const signature::combine::Forward args(call.args);
    const C *rows = args.rows.as<C>(), *residual = args.residual.as<C>(), *shared = args.shared.as<C>();
    const int32_t* token_row = args.token_row.as<int32_t>();
    C* y = args.y.as<C>();
    const int64_t T = args.y.dim(0), width = args.y.dim(1), k = args.token_row.dim(1);
    call.pool->for_each_tile(base::ceil_div(T, kTileRows), [&](int64_t tile) {
      C sum[kChunk];
      for (int64_t t = tile * kTileRows; t < std::min(T, (tile + 1) * kTileRows); ++t)
        for (int64_t c = 0; c < width; c += kChunk) {
          const int64_t n = std::min(kChunk, width - c), at = t * width + c;
          sum_rows(rows, token_row + t * k, k, width, c, n, sum);
          if (shared)
            for (int64_t i = 0; i < n; ++i) sum[i] += shared[at + i];
          if (residual)
            for (int64_t i = 0; i < n; ++i) sum[i] += residual[at + i];
          std::copy_n(sum, n, y + at);
        }
    });
  }
};

template <class C>
struct CombineBackward {
  static void run(const Invocation& call) {
    const signature::combine::BackwardInput args(call.args);
    const C* dy = args.dy.as<C>();
    const int32_t *row_token = args.row_token.as<int32_t>(), *offsets = args.offsets.as<int32_t>();
    C* drows = args.drows.as<C>();
    const int64_t width = args.dy.dim(1), num_rows = offsets[args.offsets.dim(0) - 1];
    call.pool->for_each_tile(base::ceil_div(num_rows, kTileRows), [&](int64_t tile) {
      copy_rows(dy, row_token, tile * kTileRows, std::min(num_rows, (tile + 1) * kTileRows), width, drows);
    });
  }
};

}  // namespace

Kernel resolve_permute_forward(const Invocation& call) {
  const signature::permute::Forward args(call.args);
  constexpr std::string_view kName = "permute";
  check_rank(kName, "x", args.x, 2);
  check_rank(kName, "probs", args.probs, 2);
  check_offsets(kName, args.offsets);
  check_rank(kName, "rows", args.rows, 2);
  const int64_t R = args.rows.dim(0);
  require_shape(kName, "probs", args.probs, {args.x.dim(0), args.probs.dim(1)});
  require_dtype(kName, "row_token", args.row_token, tensor::Dtype::I32);
  require_shape(kName, "row_token", args.row_token, {R});
  require_dtype(kName, "row_slot", args.row_slot, tensor::Dtype::I32);
  require_shape(kName, "row_slot", args.row_slot, {R});
  require_dtype(kName, "token_row", args.token_row, tensor::Dtype::I32);
  require_shape(kName, "token_row", args.token_row, {args.x.dim(0), args.probs.dim(1)});
  require_dtype(kName, "rows", args.rows, args.x.dtype);
  require_shape(kName, "rows", args.rows, {R, args.x.dim(1)});
  require_dtype(kName, "row_probs", args.row_probs, args.probs.dtype);
  require_shape(kName, "row_probs", args.row_probs, {R});
  return select_pair<PermuteForward>(kName, args.x.dtype, args.probs.dtype);
}

Kernel resolve_permute_backward_input(const Invocation& call) {
  const signature::permute::BackwardInput args(call.args);
  constexpr std::string_view kName = "permute";
  check_rank(kName, "drows", args.drows, 2);
  check_rank(kName, "token_row", args.token_row, 2);
  check_rank(kName, "dx", args.dx, 2);
  const int64_t T = args.token_row.dim(0), k = args.token_row.dim(1);
  require_dtype(kName, "token_row", args.token_row, tensor::Dtype::I32);
  require_shape(kName, "drow_probs", args.drow_probs, {args.drows.dim(0)});
  require_dtype(kName, "dx", args.dx, args.drows.dtype);
  require_shape(kName, "dx", args.dx, {T, args.drows.dim(1)});
  require_dtype(kName, "dprobs", args.dprobs, args.drow_probs.dtype);
  require_shape(kName, "dprobs", args.dprobs, {T, k});
  return select_pair<PermuteBackward>(kName, args.drows.dtype, args.drow_probs.dtype);
}

Kernel resolve_combine_forward(const Invocation& call) {
  const signature::combine::Forward args(call.args);
  constexpr std::string_view kName = "combine";
  check_rank(kName, "rows", args.rows, 2);
  check_rank(kName, "token_row", args.token_row, 2);
  const int64_t T = args.token_row.dim(0), h = args.rows.dim(1);
  require_dtype(kName, "token_row", args.token_row, tensor::Dtype::I32);
  require_shape(kName, "residual", args.residual, {T, h});
  require_dtype(kName, "residual", args.residual, args.rows.dtype);
  require_shape(kName, "shared", args.shared, {T, h});
  require_dtype(kName, "shared", args.shared, args.rows.dtype);
  require_shape(kName, "y", args.y, {T, h});
  require_dtype(kName, "y", args.y, args.rows.dtype);
  return select_float<CombineForward>(args.rows.dtype);
}

Kernel resolve_combine_backward_input(const Invocation& call) {
  const signature::combine::BackwardInput args(call.args);
  constexpr std::string_view kName = "combine";
  check_rank(kName, "dy", args.dy, 2);
  check_rank(kName, "row_token", args.row_token, 1);
  check_offsets(kName, args.offsets);
  require_dtype(kName, "row_token", args.row_token, tensor::Dtype::I32);
  check_rank(kName, "token_row", args.token_row, 2);
  require_dtype(kName, "token_row", args.token_row, tensor::Dtype::I32);
  require_shape(kName, "token_row", args.token_row, {args.dy.dim(0), args.token_row.dim(1)});
  require_dtype(kName, "drows", args.drows, args.dy.dtype);
  require_shape(kName, "drows", args.drows, {args.row_token.dim(0), args.dy.dim(1)});
  return select_float<CombineBackward>(args.dy.dtype);
}

}  // namespace pleat::kernels
