#include "kernels/sigmoid_gate/sigmoid_gate.h"

#include <algorithm>

#include "kernels/math/exp.h"
#include "kernels/math/reduce.h"
#include "kernels/math/tiles.h"

namespace pleat::kernels {
namespace {

template <class T>
struct Forward {
  static void run(const Invocation& call) {
    const signature::sigmoid_gate::Forward<Arg> args(call.args);
    const T* x = args.x.as<T>();
    const T* w = args.w.as<T>();
    const T* y = args.y.as<T>();
    T* out = args.out.as<T>();
    const int64_t rows = args.x.dim(0), width = args.x.dim(1);
    const Tiling tiling = row_tiling(rows, width);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
        const T s = static_cast<T>(fast_sigmoid(dot_of(x + t * width, w, width)));
        for (int64_t j = 0; j < width; ++j) out[t * width + j] = s * y[t * width + j];
      }
    });
  }
};

// s and c of one token.
struct Slope {
  double gate, coefficient;
};
template <class T>
Slope slope(const T* dout, const T* x, const T* w, const T* y, int64_t width) {
  const double s = fast_sigmoid(dot_of(x, w, width));
  return {s, dot_of(dout, y, width) * s * (1 - s)};
}

template <class T>
struct BackwardInput {
  static void run(const Invocation& call) {
    const signature::sigmoid_gate::BackwardInput<Arg> args(call.args);
    const T* dout = args.dout.as<T>();
    const T* x = args.x.as<T>();
    const T* w = args.w.as<T>();
    const T* y = args.y.as<T>();
    T* dx = args.dx.as<T>();
    T* dy = args.dy.as<T>();
    const bool accumulate = args.dx.into() == Into::Accumulate;
    const int64_t rows = args.dout.dim(0), width = args.dout.dim(1);
    const Tiling tiling = row_tiling(rows, width);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
        const int64_t at = t * width;
        const Slope k = slope(dout + at, x + at, w, y + at, width);
        const T s = static_cast<T>(k.gate), c = static_cast<T>(k.coefficient);
        for (int64_t j = 0; j < width; ++j) dy[at + j] = s * dout[at + j];
        if (accumulate) {
          for (int64_t j = 0; j < width; ++j) dx[at + j] += c * w[j];
        } else {
          for (int64_t j = 0; j < width; ++j) dx[at + j] = c * w[j];
        }
      }
    });
  }
};

template <class T>
struct BackwardWeight {
  static void run(const Invocation& call) {
    const signature::sigmoid_gate::BackwardWeight<Arg> args(call.args);
    const T* dout = args.dout.as<T>();
    const T* x = args.x.as<T>();
    const T* w = args.w.as<T>();
    const T* y = args.y.as<T>();
    T* dw = args.dw.as<T>();
    const int64_t rows = args.dout.dim(0), width = args.dout.dim(1);
    if (args.dw.into() == Into::Overwrite) std::fill_n(dw, width, T(0));
    double coefficient[kGateBlock];
    for (int64_t first = 0; first < rows; first += kGateBlock) {
      const int64_t count = std::min(kGateBlock, rows - first);
      const Tiling tokens = row_tiling(count, width);
      call.pool->for_each_tile(tokens.num_tiles(), [&](int64_t tile_idx) {
        for (int64_t i = tokens.begin(tile_idx); i < tokens.end(tile_idx); ++i) {
          const int64_t at = (first + i) * width;
          coefficient[i] = slope(dout + at, x + at, w, y + at, width).coefficient;
        }
      });
      const Tiling columns = column_tiling(width);
      call.pool->for_each_tile(columns.num_tiles(), [&](int64_t tile_idx) {
        const int64_t begin = columns.begin(tile_idx), size = columns.end(tile_idx) - begin;
        double sum[kColumnTile] = {};
        for (int64_t i = 0; i < count; ++i) {
          const T* row = x + (first + i) * width + begin;
          for (int64_t j = 0; j < size; ++j) sum[j] += coefficient[i] * static_cast<double>(row[j]);
        }
        for (int64_t j = 0; j < size; ++j) dw[begin + j] = static_cast<T>(dw[begin + j] + sum[j]);
      });
    }
  }
};

constexpr Binding kTable[] = {
    row<signature::sigmoid_gate::Forward, Forward>([](const auto& a) { return a.x.dtype; }),
    row<signature::sigmoid_gate::BackwardInput, BackwardInput>([](const auto& a) { return a.dout.dtype; }),
    row<signature::sigmoid_gate::BackwardWeight, BackwardWeight>(
        [](const auto& a) { return common_type(a.dw, a.dout); }),
};

}  // namespace

std::span<const Binding> sigmoid_gate_bindings() { return kTable; }

}  // namespace pleat::kernels
