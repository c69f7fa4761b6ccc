#include "kernels/swiglu/swiglu.h"

#include "kernels/math/exp.h"
#include "kernels/math/require.h"
#include "kernels/math/tiles.h"

namespace pleat::kernels {
namespace {

template <class T>
struct Forward {
  static void run(const Invocation& call) {
    const T* gu = call[0].as<T>();
    T* a = call[1].as<T>();
    const int64_t rows = call[1].dim(0), width = call[1].dim(1);
    const Tiling tiling = row_tiling(rows, width);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
        const T* __restrict gate = gu + t * 2 * width;
        const T* __restrict up = gate + width;
        T* __restrict to = a + t * width;
        for (int64_t j = 0; j < width; ++j) to[j] = gate[j] * fast_sigmoid(gate[j]) * up[j];
      }
    });
  }
};

template <class T>
struct BackwardInput {
  static void run(const Invocation& call) {
    const T* da = call[0].as<T>();
    const T* gu = call[1].as<T>();
    T* dgu = call[2].as<T>();
    const int64_t rows = call[0].dim(0), width = call[0].dim(1);
    const Tiling tiling = row_tiling(rows, width);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
        const T* gate = gu + t * 2 * width;
        const T* d = da + t * width;
        T* to = dgu + t * 2 * width;
        for (int64_t j = 0; j < width; ++j) {
          const T g = gate[j], u = gate[width + j], s = fast_sigmoid(g);
          to[j] = d[j] * u * s * (T(1) + g * (T(1) - s));
          to[width + j] = d[j] * g * s;
        }
      }
    });
  }
};

Kernel resolve_forward(const Invocation& call) {
  require_rank("swiglu", "a", call[1], 2);
  require_shape("swiglu", "gu", call[0], {call[1].dim(0), 2 * call[1].dim(1)});
  require_same_dtype("swiglu", call, {"gu", "a"});
  return select_float<Forward>(call[0].dtype);
}

Kernel resolve_backward_input(const Invocation& call) {
  require_rank("swiglu", "da", call[0], 2);
  require_shape("swiglu", "gu", call[1], {call[0].dim(0), 2 * call[0].dim(1)});
  require_shape("swiglu", "dgu", call[2], {call[0].dim(0), 2 * call[0].dim(1)});
  require_same_dtype("swiglu", call, {"da", "gu", "dgu"});
  return select_float<BackwardInput>(call[0].dtype);
}

}  // namespace

std::span<const Binding> swiglu_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr Binding rows[] = {
      {KernelKind::swiglu, Phase::Forward, resolve_forward},
      {KernelKind::swiglu, Phase::BackwardInput, resolve_backward_input},
  };
  return rows;
}

}  // namespace pleat::kernels
