// One matrix product per expert, cut into tiles that keep all threads busy however uneven the experts are.
#include "kernels/grouped_linear/grouped_linear.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"
#include "kernels/linear/gemm.h"
#include "kernels/router/router.h"

namespace pleat::kernels {
namespace {

// Large enough for BLAS to run at its full rate (packing is paid per tile), small enough to share out.
constexpr int64_t kTileRows = 320;
constexpr int64_t kTileColumns = 512;
constexpr int64_t kWeightRows = 192;  // of dw
constexpr int64_t kWeightColumns = 256;

// [0, n) in blocks of nearly equal size, none larger than `largest`.
struct Blocks {
  int64_t n, count;
  Blocks(int64_t size, int64_t largest) : n(size), count(base::ceil_div(size, largest)) {}
  int64_t begin(int64_t i) const { return std::min(n, base::round_up(n * i / count, 16)); }
  int64_t end(int64_t i) const { return i + 1 == count ? n : begin(i + 1); }
};

// y = x op(w) over all experts: tiles of (expert, block of its rows, block of columns).
template <class C>
void multiply_rows(const Invocation& call, const C* x, const C* w, const int32_t* offsets, C* y, int64_t E,
                   int64_t depth, int64_t width, Transpose transpose_w, int64_t w_stride) {
  const Blocks columns(width, kTileColumns);
  int64_t first_tile[kMaxExperts + 1];
  first_tile[0] = 0;
  for (int64_t e = 0; e < E; ++e)
    first_tile[e + 1] =
        first_tile[e] + base::ceil_div(offsets[e + 1] - offsets[e], kTileRows) * columns.count;
  call.pool->for_each_tile(first_tile[E], [&](int64_t tile) {
    const int64_t e = std::upper_bound(first_tile, first_tile + E + 1, tile) - first_tile - 1;
    const Blocks rows(offsets[e + 1] - offsets[e], kTileRows);
    const int64_t in_expert = tile - first_tile[e], row_block = in_expert / columns.count,
                  column_block = in_expert % columns.count;
    const int64_t row = offsets[e] + rows.begin(row_block),
                  num_rows = rows.end(row_block) - rows.begin(row_block);
    const int64_t column = columns.begin(column_block), num_columns = columns.end(column_block) - column;
    const C* part = w + e * depth * width + (transpose_w == Transpose::Yes ? column * w_stride : column);
    gemm<C>(Transpose::No, transpose_w, num_rows, num_columns, depth, 1, x + row * depth, depth, part,
            w_stride, 0, y + row * width + column, width);
  });
}

template <class C>
struct Forward {
  static void run(const Invocation& call) {
    const int64_t E = call[1].dim(0), out = call[1].dim(1), in = call[1].dim(2);
    multiply_rows<C>(call, call[0].as<C>(), call[1].as<C>(), call[2].as<int32_t>(), call[3].as<C>(), E, in,
                     out, Transpose::Yes, in);
  }
};

template <class C>
struct BackwardInput {
  static void run(const Invocation& call) {
    const int64_t E = call[1].dim(0), out = call[1].dim(1), in = call[1].dim(2);
    multiply_rows<C>(call, call[0].as<C>(), call[1].as<C>(), call[2].as<int32_t>(), call[3].as<C>(), E, out,
                     in, Transpose::No, in);
  }
};

template <class C>
struct BackwardWeight {
  static void run(const Invocation& call) {
    const C *dy = call[0].as<C>(), *x = call[1].as<C>();
    const int32_t* offsets = call[2].as<int32_t>();
    C* dw = call[3].as<C>();
    const bool add = call[3].into() == Into::Accumulate;
    const int64_t E = call[3].dim(0), out = call[3].dim(1), in = call[3].dim(2);
    const Blocks outs(out, kWeightRows), ins(in, kWeightColumns);
    const int64_t per_expert = outs.count * ins.count;
    // The expert with most rows first: what is left for the end is small.
    int32_t order[kMaxExperts];
    std::iota(order, order + E, 0);
    const auto rows_of = [offsets](int32_t e) { return offsets[e + 1] - offsets[e]; };
    std::sort(order, order + E, [&](int32_t a, int32_t b) {
      return rows_of(a) != rows_of(b) ? rows_of(a) > rows_of(b) : a < b;
    });
    call.pool->for_each_tile(E * per_expert, [&](int64_t tile) {
      const int64_t e = order[tile / per_expert], block = tile % per_expert;
      const int64_t o = outs.begin(block / ins.count), num_out = outs.end(block / ins.count) - o;
      const int64_t i = ins.begin(block % ins.count), num_in = ins.end(block % ins.count) - i;
      const int64_t row = offsets[e], num_rows = offsets[e + 1] - row;
      if (num_rows == 0 && add) return;
      gemm<C>(Transpose::Yes, Transpose::No, num_out, num_in, num_rows, 1, dy + row * out + o, out,
              x + row * in + i, in, add ? 1 : 0, dw + (e * out + o) * in + i, in);
    });
  }
};

constexpr std::string_view kName = "grouped_linear";

void check_weights(const Invocation& call, const Arg& w, std::string_view w_name, const Arg& x,
                   std::string_view x_name, const Arg& y, std::string_view y_name) {
  if (w.shape.size() != 3)
    base::fail("[{}] argument '{}' has {} dimensions, needed 3", kName, w_name, w.shape.size());
  if (x.shape.size() != 2)
    base::fail("[{}] argument '{}' has {} dimensions, needed 2", kName, x_name, x.shape.size());
  const int64_t E = w.dim(0);
  if (E < 1 || E > kMaxExperts) base::fail("[{}] {} experts, needed 1 to {}", kName, E, kMaxExperts);
  require_shape(kName, x_name, x, {x.dim(0), w.dim(2)});
  require_shape(kName, y_name, y, {x.dim(0), w.dim(1)});
  require_dtype(kName, "offsets", call[2], tensor::Dtype::I32);
  require_shape(kName, "offsets", call[2], {E + 1});
  require_dtype(kName, x_name, x, w.dtype);
  require_dtype(kName, y_name, y, w.dtype);
}

}  // namespace

Kernel resolve_grouped_linear_forward(const Invocation& call) {
  check_weights(call, call[1], "w", call[0], "x", call[3], "y");
  return select_float<Forward>(call[1].dtype);
}

Kernel resolve_grouped_linear_backward_input(const Invocation& call) {
  check_weights(call, call[1], "w", call[3], "dx", call[0], "dy");
  return select_float<BackwardInput>(call[1].dtype);
}

Kernel resolve_grouped_linear_backward_weight(const Invocation& call) {
  check_weights(call, call[3], "dw", call[1], "x", call[0], "dy");
  return select_float<BackwardWeight>(call[3].dtype);
}

std::span<const Binding> grouped_linear_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr Binding kRows[] = {
      {KernelKind::grouped_linear, Phase::Forward, resolve_grouped_linear_forward},
      {KernelKind::grouped_linear, Phase::BackwardInput, resolve_grouped_linear_backward_input},
      {KernelKind::grouped_linear, Phase::BackwardWeight, resolve_grouped_linear_backward_weight},
      {KernelKind::expert_swiglu, Phase::Forward, resolve_expert_swiglu_forward},
      {KernelKind::expert_swiglu, Phase::BackwardInput, resolve_expert_swiglu_backward_input},
  };
  return kRows;
}

}  // namespace pleat::kernels
