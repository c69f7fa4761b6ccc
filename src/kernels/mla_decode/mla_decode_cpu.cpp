#include "kernels/mla_decode/mla_decode.h"

#include <algorithm>

#include "kernels/linear/gemm.h"
#include "kernels/math/tiles.h"
#include "kernels/mla/mla.h"
#include "kernels/rope/rotate.h"

namespace pleat::kernels {
namespace {

constexpr int64_t kTileRows = 128;

template <class T>
struct Absorb {
  static void run(const Invocation& call) {
    const signature::mla_absorb::Forward<Arg> args(call.args);
    const MlaShape s = mla_shape(call);
    const T* q = args.q.as<T>();
    const T* w = args.w.as<T>();
    const T* cos_sin = args.cos_sin.as<T>();
    T* y = args.y.as<T>();
    const int64_t rank = args.w.dim(1), width = s.heads * (rank + s.rope_dim);
    const Tiling tiling{args.q.dim(0), kTileRows};
    call.pool->for_each_tile(tiling.num_tiles() * s.heads, [&](int64_t tile) {
      const int64_t h = tile % s.heads, begin = tiling.begin(tile / s.heads),
                    end = tiling.end(tile / s.heads);
      const T* from = q + h * s.qk_dim();
      T* to = y + h * (rank + s.rope_dim);
      gemm(Transpose::No, Transpose::No, end - begin, rank, s.nope_dim, T(1), from + begin * s.q_width(),
           s.q_width(), w + h * (s.nope_dim + s.v_dim) * rank, rank, T(0), to + begin * width, width);
      for (int64_t t = begin; t < end; ++t)
        rotate_pairs(s.rope_dim, s.interleaved, T(1), cos_sin + t * s.rope_dim,
                     from + t * s.q_width() + s.nope_dim, to + t * width + rank);
    });
  }
};

template <class T>
struct Latent {
  static void run(const Invocation& call) {
    const signature::mla_latent::Forward<Arg> args(call.args);
    const MlaShape s = mla_shape(call);
    const T* kv = args.kv.as<T>();
    const T* k_pe = args.k_pe.as<T>();
    const T* cos_sin = args.cos_sin.as<T>();
    T* rows = args.rows.as<T>();
    const int64_t rank = args.kv.dim(1), width = rank + s.rope_dim;
    const Tiling tiling = row_tiling(args.kv.dim(0), width);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile) {
      for (int64_t t = tiling.begin(tile); t < tiling.end(tile); ++t) {
        std::copy_n(kv + t * rank, rank, rows + t * width);
        rotate_pairs(s.rope_dim, s.interleaved, T(1), cos_sin + t * s.rope_dim, k_pe + t * s.rope_dim,
                     rows + t * width + rank);
      }
    });
  }
};

template <class T>
struct Expand {
  static void run(const Invocation& call) {
    const signature::mla_expand::Forward<Arg> args(call.args);
    const MlaShape s = mla_shape(call);
    const T* x = args.x.as<T>();
    const T* w = args.w.as<T>();
    T* y = args.y.as<T>();
    const int64_t rank = args.w.dim(1), width = s.heads * s.v_dim;
    const Tiling tiling{args.x.dim(0), kTileRows};
    call.pool->for_each_tile(tiling.num_tiles() * s.heads, [&](int64_t tile) {
      const int64_t h = tile % s.heads, begin = tiling.begin(tile / s.heads),
                    end = tiling.end(tile / s.heads);
      gemm(Transpose::No, Transpose::Yes, end - begin, s.v_dim, rank, T(1),
           x + begin * s.heads * rank + h * rank, s.heads * rank,
           w + (h * (s.nope_dim + s.v_dim) + s.nope_dim) * rank, rank, T(0), y + begin * width + h * s.v_dim,
           width);
    });
  }
};

constexpr Binding kTable[] = {
    row<signature::mla_absorb::Forward, Absorb>([](const auto& a) { return a.q.dtype; }),
    row<signature::mla_latent::Forward, Latent>([](const auto& a) { return a.kv.dtype; }),
    row<signature::mla_expand::Forward, Expand>([](const auto& a) { return a.x.dtype; }),
};

}  // namespace

std::span<const Binding> mla_decode_bindings() { return kTable; }

}  // namespace pleat::kernels
