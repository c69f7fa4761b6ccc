#include <algorithm>

#include "kernels/math/require.h"
#include "kernels/math/tiles.h"
#include "kernels/mla/mla.h"
#include "kernels/rope/rotate.h"

namespace pleat::kernels {
namespace {

constexpr std::string_view kName = "mla_pack";

template <class T>
struct Forward {
  static void run(const Invocation& call) {
    const MlaShape s = mla_shape(call);
    const T* q = call[0].as<T>();
    const T* kv = call[1].as<T>();
    const T* k_pe = call[2].as<T>();
    const T* cos_sin = call[3].as<T>();
    T* qkv = call[4].as<T>();
    const int64_t d = s.qk_dim(), dn = s.nope_dim, dr = s.rope_dim, dv = s.v_dim;
    const Tiling tiling = row_tiling(call[0].dim(0), s.packed_width());
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
    const MlaShape s = mla_shape(call);
    const T* dqkv = call[0].as<T>();
    const T* cos_sin = call[1].as<T>();
    T* dq = call[2].as<T>();
    T* dkv = call[3].as<T>();
    T* dk_pe = call[4].as<T>();
    const int64_t d = s.qk_dim(), dn = s.nope_dim, dr = s.rope_dim, dv = s.v_dim;
    const Tiling tiling = row_tiling(call[0].dim(0), s.packed_width());
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

Kernel resolve_forward(const Invocation& call) {
  const MlaShape s = mla_shape(call);
  require_rank(kName, "q", call[0], 2);
  const int64_t rows = call[0].dim(0);
  require_shape(kName, "q", call[0], {rows, s.q_width()});
  require_shape(kName, "kv", call[1], {rows, s.kv_width()});
  require_shape(kName, "k_pe", call[2], {rows, s.rope_dim});
  require_shape(kName, "cos_sin", call[3], {rows, s.rope_dim});
  require_shape(kName, "qkv", call[4], {rows, s.packed_width()});
  require_same_dtype(kName, call, {"q", "kv", "k_pe", "cos_sin", "qkv"});
  return select_float<Forward>(call[0].dtype);
}

Kernel resolve_backward_input(const Invocation& call) {
  const MlaShape s = mla_shape(call);
  require_rank(kName, "dqkv", call[0], 2);
  const int64_t rows = call[0].dim(0);
  require_shape(kName, "dqkv", call[0], {rows, s.packed_width()});
  require_shape(kName, "cos_sin", call[1], {rows, s.rope_dim});
  require_shape(kName, "dq", call[2], {rows, s.q_width()});
  require_shape(kName, "dkv", call[3], {rows, s.kv_width()});
  require_shape(kName, "dk_pe", call[4], {rows, s.rope_dim});
  require_same_dtype(kName, call, {"dqkv", "cos_sin", "dq", "dkv", "dk_pe"});
  return select_float<BackwardInput>(call[0].dtype);
}

}  // namespace

MlaShape mla_shape(const Invocation& call) {
  const MlaShape s{call.integer("heads"), call.integer("nope_dim"), call.integer("rope_dim"),
                   call.integer("v_dim"), call.integer("interleaved") != 0};
  if (s.heads < 1 || s.nope_dim < 0 || s.v_dim < 1)
    base::fail("[mla_pack] heads {}, nope_dim {}, v_dim {}: needed at least 1, 0, 1", s.heads, s.nope_dim,
               s.v_dim);
  if (s.rope_dim < 2 || s.rope_dim > kMaxRopeDim || s.rope_dim % 2 != 0)
    base::fail("[mla_pack] rope_dim {} must be even, from 2 to {}", s.rope_dim, kMaxRopeDim);
  return s;
}

std::span<const Binding> mla_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr Binding rows[] = {
      {KernelKind::mla_pack, Phase::Forward, resolve_forward},
      {KernelKind::mla_pack, Phase::BackwardInput, resolve_backward_input},
  };
  return rows;
}

}  // namespace pleat::kernels
