// The gate: one narrow linear layer multiplied in the router type. Where that is wider than the compute type,
// blocks of x and w are widened on the stack, so that neither a wide copy of the weight nor of the
// activations ever exists.
#include <algorithm>
#include <type_traits>

#include "base/checked.h"
#include "kernels/linear/gemm.h"
#include "kernels/router/router.h"
#include "kernels/router/type_pair.h"

namespace pleat::kernels {
namespace {

constexpr int64_t kRows = 64;        // tokens of a tile that widens
constexpr int64_t kExperts = 64;     // experts of a block
constexpr int64_t kColumns = 64;     // columns of dw of a tile
constexpr int64_t kDepth = 256;      // hidden columns of a block, or tokens in backward_weight
constexpr int64_t kPlainRows = 128;  // tokens of a tile that needs no widening

template <class C, class R>
void widen(const C* from, int64_t stride, int64_t num_rows, int64_t num_columns, R* to) {
  for (int64_t r = 0; r < num_rows; ++r)
    for (int64_t c = 0; c < num_columns; ++c) to[r * num_columns + c] = static_cast<R>(from[r * stride + c]);
}

template <class C, class R>
void narrow(const R* from, int64_t num_rows, int64_t num_columns, C* to, int64_t stride, bool add) {
  for (int64_t r = 0; r < num_rows; ++r)
    for (int64_t c = 0; c < num_columns; ++c) {
      const C value = static_cast<C>(from[r * num_columns + c]);
      to[r * stride + c] = add ? to[r * stride + c] + value : value;
    }
}

template <class C, class R>
struct Forward {
  static void run(const Invocation& call) {
    const signature::router_gate::Forward<Arg> args(call.args);
    const C *x = args.x.as<C>(), *w = args.w.as<C>(), *bias = args.bias.as<C>();
    R* logits = args.logits.as<R>();
    const int64_t T = args.x.dim(0), h = args.x.dim(1), E = args.w.dim(0);
    const int64_t tile_rows = std::is_same_v<C, R> ? kPlainRows : kRows;
    call.pool->for_each_tile(base::ceil_div(T, tile_rows), [&](int64_t tile) {
      const int64_t t0 = tile * tile_rows, rows = std::min(tile_rows, T - t0);
      R* out = logits + t0 * E;
      if constexpr (std::is_same_v<C, R>) {
        gemm<R>(Transpose::No, Transpose::Yes, rows, E, h, 1, x + t0 * h, h, w, h, 0, out, E);
      } else {
        R x_block[kRows * kDepth], w_block[kExperts * kDepth];
        for (int64_t c = 0; c < h; c += kDepth) {
          const int64_t depth = std::min(kDepth, h - c);
          widen(x + t0 * h + c, h, rows, depth, x_block);
          for (int64_t e = 0; e < E; e += kExperts) {
            const int64_t experts = std::min(kExperts, E - e);
            widen(w + e * h + c, h, experts, depth, w_block);
            gemm<R>(Transpose::No, Transpose::Yes, rows, experts, depth, 1, x_block, depth, w_block, depth,
                    c ? 1 : 0, out + e, E);
          }
        }
      }
      if (bias)
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t e = 0; e < E; ++e) out[r * E + e] += static_cast<R>(bias[e]);
    });
  }
};

template <class C, class R>
struct BackwardInput {
  static void run(const Invocation& call) {
    const signature::router_gate::BackwardInput<Arg> args(call.args);
    const R* dlogits = args.dlogits.as<R>();
    const C* w = args.w.as<C>();
    C* dx = args.dx.as<C>();
    const bool add = args.dx.into() == Into::Accumulate;
    const int64_t T = args.dlogits.dim(0), E = args.dlogits.dim(1), h = args.w.dim(1);
    const int64_t tile_rows = std::is_same_v<C, R> ? kPlainRows : kRows;
    call.pool->for_each_tile(base::ceil_div(T, tile_rows), [&](int64_t tile) {
      const int64_t t0 = tile * tile_rows, rows = std::min(tile_rows, T - t0);
      const R* in = dlogits + t0 * E;
      if constexpr (std::is_same_v<C, R>) {
        gemm<R>(Transpose::No, Transpose::No, rows, h, E, 1, in, E, w, h, add ? 1 : 0, dx + t0 * h, h);
      } else {
        R sum[kRows * kDepth], w_block[kExperts * kDepth];
        for (int64_t c = 0; c < h; c += kDepth) {
          const int64_t width = std::min(kDepth, h - c);
          for (int64_t e = 0; e < E; e += kExperts) {
            const int64_t experts = std::min(kExperts, E - e);
            widen(w + e * h + c, h, experts, width, w_block);
            gemm<R>(Transpose::No, Transpose::No, rows, width, experts, 1, in + e, E, w_block, width,
                    e ? 1 : 0, sum, width);
          }
          narrow(sum, rows, width, dx + t0 * h + c, h, add);
        }
      }
    });
  }
};

template <class C, class R>
struct BackwardWeight {
  static void run(const Invocation& call) {
    const signature::router_gate::BackwardWeight<Arg> args(call.args);
    const R* dlogits = args.dlogits.as<R>();
    const C* x = args.x.as<C>();
    C *dw = args.dw.as<C>(), *dbias = args.dbias.as<C>();
    const bool add = args.dw.into() == Into::Accumulate;
    const int64_t T = args.dlogits.dim(0), E = args.dlogits.dim(1), h = args.x.dim(1);
    const int64_t column_tiles = base::ceil_div(h, kColumns);
    call.pool->for_each_tile(base::ceil_div(E, kExperts) * column_tiles, [&](int64_t tile) {
      const int64_t e = tile / column_tiles * kExperts, c = tile % column_tiles * kColumns;
      const int64_t experts = std::min(kExperts, E - e), columns = std::min(kColumns, h - c);
      if constexpr (std::is_same_v<C, R>) {
        gemm<R>(Transpose::Yes, Transpose::No, experts, columns, T, 1, dlogits + e, E, x + c, h, add ? 1 : 0,
                dw + e * h + c, h);
      } else {
        R sum[kExperts * kColumns] = {}, x_block[kDepth * kColumns];
        for (int64_t t = 0; t < T; t += kDepth) {
          const int64_t tokens = std::min(kDepth, T - t);
          widen(x + t * h + c, h, tokens, columns, x_block);
          gemm<R>(Transpose::Yes, Transpose::No, experts, columns, tokens, 1, dlogits + t * E + e, E, x_block,
                  columns, 1, sum, columns);
        }
        narrow(sum, experts, columns, dw + e * h + c, h, add);
      }
    });
    if (!dbias) return;
    const bool add_bias = args.dbias.into() == Into::Accumulate;
    double sum[kMaxExperts];
    std::fill_n(sum, E, 0.0);
    for (int64_t t = 0; t < T; ++t)
      for (int64_t e = 0; e < E; ++e) sum[e] += static_cast<double>(dlogits[t * E + e]);
    for (int64_t e = 0; e < E; ++e)
      dbias[e] = static_cast<C>((add_bias ? static_cast<double>(dbias[e]) : 0.0) + sum[e]);
  }
};

constexpr Binding kTable[] = {
    pair_row<signature::router_gate::Forward, Forward>([](const auto& a) {
      return TypePair{a.x.dtype, a.logits.dtype};
    }),
    pair_row<signature::router_gate::BackwardInput, BackwardInput>([](const auto& a) {
      return TypePair{a.w.dtype, a.dlogits.dtype};
    }),
    pair_row<signature::router_gate::BackwardWeight, BackwardWeight>([](const auto& a) {
      return TypePair{common_type(a.dw, a.x), a.dlogits.dtype};
    }),
};

}  // namespace

std::span<const Binding> router_gate_bindings() { return kTable; }

}  // namespace pleat::kernels
