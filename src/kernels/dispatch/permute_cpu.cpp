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
    const signature::permute::Forward<Arg> args(call.args);
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
    const signature::permute::BackwardInput<Arg> args(call.args);
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
    const signature::combine::Forward<Arg> args(call.args);
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
    const signature::combine::BackwardInput<Arg> args(call.args);
    const C* dy = args.dy.as<C>();
    const int32_t *row_token = args.row_token.as<int32_t>(), *offsets = args.offsets.as<int32_t>();
    C* drows = args.drows.as<C>();
    const int64_t width = args.dy.dim(1), num_rows = offsets[args.offsets.dim(0) - 1];
    call.pool->for_each_tile(base::ceil_div(num_rows, kTileRows), [&](int64_t tile) {
      copy_rows(dy, row_token, tile * kTileRows, std::min(num_rows, (tile + 1) * kTileRows), width, drows);
    });
  }
};

constexpr Binding kTable[] = {
    pair_row<signature::permute::Forward, PermuteForward>([](const auto& a) {
      return TypePair{a.x.dtype, a.probs.dtype};
    }),
    pair_row<signature::permute::BackwardInput, PermuteBackward>([](const auto& a) {
      return TypePair{a.drows.dtype, a.drow_probs.dtype};
    }),
    row<signature::combine::Forward, CombineForward>([](const auto& a) { return a.rows.dtype; }),
    row<signature::combine::BackwardInput, CombineBackward>([](const auto& a) { return a.dy.dtype; }),
};

}  // namespace

std::span<const Binding> permute_bindings() { return kTable; }

}  // namespace pleat::kernels
