#include <algorithm>

#include "kernels/math/tiles.h"
#include "kernels/mla/mla.h"
#include "kernels/rope/rotate.h"

namespace pleat::kernels {
namespace {

template <class T>
struct Forward {
  static void run(const Invocation& call) {
    const signature::mla_pack::Forward<Arg> args(call.args);
    const MlaShape s = mla_shape(call);
    const T* q = args.q.as<T>();
    const T* kv = args.kv.as<T>();
    const T* k_pe = args.k_pe.as<T>();
    const T* cos_sin = args.cos_sin.as<T>();
    T* qkv = args.qkv.as<T>();
    const int64_t d = s.qk_dim(), dn = s.nope_dim, dr = s.rope_dim, dv = s.v_dim;
    const Tiling tiling = row_tiling(args.q.dim(0), s.packed_width());
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
        const T* table = cos_sin + t * dr;
        T turned[kMaxRopeDim];
        rotate_pairs(dr, s.interleaved, T(1), table, k_pe + t * dr, turned);
        T* row = qkv + t * s.packed_width();
        for (int64_t h = 0; h < s.heads; ++h) {
          const T* from_q = q + t * s.q_width() + h * d;
          const T* from_kv = kv + t * s.kv_width() + h * (dn + dv);
          T* to_q = row + h * d;
          T* to_k = row + s.q_width() + h * d;
          std::copy_n(from_q, dn, to_q);
          rotate_pairs(dr, s.interleaved, T(1), table, from_q + dn, to_q + dn);
          std::copy_n(from_kv, dn, to_k);
          std::copy_n(turned, dr, to_k + dn);
          std::copy_n(from_kv + dn, dv, row + 2 * s.q_width() + h * dv);
        }
      }
    });
  }
};

template <class T>
struct BackwardInput {
  static void run(const Invocation& call) {
    const signature::mla_pack::BackwardInput<Arg> args(call.args);
    const MlaShape s = mla_shape(call);
    const T* dqkv = args.dqkv.as<T>();
    const T* cos_sin = args.cos_sin.as<T>();
    T* dq = args.dq.as<T>();
    T* dkv = args.dkv.as<T>();
    T* dk_pe = args.dk_pe.as<T>();
    const int64_t d = s.qk_dim(), dn = s.nope_dim, dr = s.rope_dim, dv = s.v_dim;
    const Tiling tiling = row_tiling(args.dqkv.dim(0), s.packed_width());
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
        const T* table = cos_sin + t * dr;
        const T* row = dqkv + t * s.packed_width();
        double sum[kMaxRopeDim], wide_table[kMaxRopeDim];
        std::fill_n(sum, dr, 0.0);
        for (int64_t h = 0; h < s.heads; ++h) {
          const T* from_q = row + h * d;
          const T* from_k = row + s.q_width() + h * d;
          T* to_q = dq + t * s.q_width() + h * d;
          T* to_kv = dkv + t * s.kv_width() + h * (dn + dv);
          std::copy_n(from_q, dn, to_q);
          rotate_pairs(dr, s.interleaved, T(-1), table, from_q + dn, to_q + dn);
          std::copy_n(from_k, dn, to_kv);
          std::copy_n(row + 2 * s.q_width() + h * dv, dv, to_kv + dn);
          for (int64_t i = 0; i < dr; ++i) sum[i] += static_cast<double>(from_k[dn + i]);
        }
        std::copy_n(table, dr, wide_table);
        rotate_pairs(dr, s.interleaved, -1.0, wide_table, sum, sum);
        for (int64_t i = 0; i < dr; ++i) dk_pe[t * dr + i] = static_cast<T>(sum[i]);
      }
    });
  }
};

constexpr Binding kTable[] = {
    row<signature::mla_pack::Forward, Forward>([](const auto& a) { return a.q.dtype; }),
    row<signature::mla_pack::BackwardInput, BackwardInput>([](const auto& a) { return a.dqkv.dtype; }),
};

}  // namespace

std::span<const Binding> mla_bindings() { return kTable; }

}  // namespace pleat::kernels
