#include "kernels/quantize/quantize.h"

#include <algorithm>
#include <cmath>

#include "kernels/math/tiles.h"
#include "kernels/quantize/code_counts.h"
#include "kernels/quantize/code_values.h"

namespace pleat::kernels {
namespace {

using tensor::E4M3;

using tensor::Recipe;
using tensor::RecipeId;

constexpr Recipe kFp8 = tensor::recipe_of(RecipeId::Fp8);
constexpr int64_t kBlock = kFp8.block;

// The exponent of a block's scale grows with what it is shown.
class BlockScale {
 public:
  template <class T>
  void show(T x) {
    const double size = std::abs(static_cast<double>(x));
    if (std::isfinite(size)) largest_ = std::max(largest_, size);
  }
  int exponent() const { return tensor::scale_exponent<E4M3>(largest_); }

 private:
  double largest_ = 0;
};

float scale_of(int exponent) { return static_cast<float>(std::ldexp(1.0, exponent)); }
// What no scale holds, since float scales end, is not finite to a code: saturated, it would pass for a number.
template <class T>
uint8_t code_of(T x, double per_scale) {
  const double scaled = static_cast<double>(x) * per_scale;
  return static_cast<uint8_t>(std::abs(scaled) <= E4M3::largest() ? E4M3::code(scaled) : E4M3::kNan);
}

// Rows in use: of routed values those of the experts.
int64_t rows_in_use(const Arg& offsets, int64_t rows) {
  return offsets.present ? offsets.as<int32_t>()[offsets.dim(0) - 1] : rows;
}

// How often row r counts: as often as experts take it, where token_row says so.
int64_t times_of(const Arg& token_row, int64_t r) {
  if (!token_row.present) return 1;
  const int64_t k = token_row.dim(1);
  const int32_t* rows = token_row.as<int32_t>() + r * k;
  return std::count_if(rows, rows + k, [](int32_t row) { return row >= 0; });
}

template <class T, template <class> class Args>
struct Rows {
  static void run(const Invocation& call) {
    const Args<Arg> args(call.args);
    const int64_t n = args.x.dim(1), blocks = base::ceil_div(n, kBlock);
    const T* x = args.x.template as<T>();
    auto* codes = static_cast<uint8_t*>(args.codes.data);
    float* scale = args.scale.template as<float>();
    CodeTally tally(args, call);
    const Tiling tiling = row_tiling(rows_in_use(args.offsets, args.x.dim(0)), n);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile) {
      CodeCounts counts;
      for (int64_t r = tiling.begin(tile); r < tiling.end(tile); ++r) {
        const int64_t times = tally.counting() ? times_of(args.token_row, r) : 0;
        for (int64_t b = 0; b < blocks; ++b) {
          const int64_t begin = r * n + b * kBlock, end = r * n + std::min(n, (b + 1) * kBlock);
          BlockScale block;
          for (int64_t i = begin; i < end; ++i) block.show(x[i]);
          const int e = block.exponent();
          scale[r * blocks + b] = scale_of(e);
          const double per = std::ldexp(1.0, -e);
          for (int64_t i = begin; i < end; ++i) codes[i] = code_of(x[i], per);
          for (int64_t i = begin; times > 0 && i < end; ++i)
            counts.see<E4M3>(static_cast<double>(x[i]), std::ldexp(1.0, e), codes[i], times);
        }
      }
      tally.add(counts);
    });
    tally.write();
  }
};

struct Turn {
  static void run(const Invocation& call) {
    const signature::turn_codes::BackwardWeight<Arg> args(call.args);
    const int64_t n = args.codes.dim(1), across = base::ceil_div(n, kBlock), room = args.columns.dim(0);
    const auto* codes = static_cast<const uint8_t*>(args.codes.data);
    const float* scale = args.scale.as<float>();
    auto* columns = static_cast<uint8_t*>(args.columns.data);
    float* column_scale = args.column_scale.as<float>();
    // Rows [from, from + rows) of the codes to rows [to, to + rows) of columns, block by block.
    const auto turn = [&](int64_t from, int64_t to, int64_t rows) {
      const Tiling down{rows, kBlock}, sideways = column_tiling(n);
      call.pool->for_each_tile(down.num_tiles() * sideways.num_tiles(), [&](int64_t tile) {
        const int64_t block = tile / sideways.num_tiles(), part = tile % sideways.num_tiles();
        const int64_t first = down.begin(block), count = down.end(block) - first;
        for (int64_t j = sideways.begin(part); j < sideways.end(part); ++j) {
          const auto value = [&](int64_t i) {
            const int64_t row = from + first + i;
            return static_cast<double>(kE4m3Values[codes[row * n + j]]) * scale[row * across + j / kBlock];
          };
          BlockScale own;
          for (int64_t i = 0; i < count; ++i) own.show(value(i));
          const int e = own.exponent();
          column_scale[(to / kBlock + block) * n + j] = scale_of(e);
          const double per = std::ldexp(1.0, -e);
          uint8_t* const out = columns + j * room + to + first;
          for (int64_t i = 0; i < count; ++i) out[i] = code_of(value(i), per);
          std::fill(out + count, out + kBlock, uint8_t{0});
        }
      });
    };
    if (!args.offsets.present) return turn(0, 0, args.codes.dim(0));
    const int32_t* offsets = args.offsets.as<int32_t>();
    for_each_expert(offsets, args.offsets.dim(0) - 1, kFp8.align,
                    [&](int64_t e, int64_t to, int64_t rows) { turn(offsets[e], to, rows); });
  }
};

template <class T, template <class> class Args>
struct Weight {
  static void run(const Invocation& call) {
    const Args<Arg> args(call.args);
    const bool turned = call.integer("turned") != 0;
    const size_t rank = args.w.shape.size();
    const int64_t matrices = rank == 3 ? args.w.dim(0) : 1, out = args.w.dim(rank - 2),
                  in = args.w.dim(rank - 1);
    const int64_t down = base::ceil_div(out, kBlock), across = base::ceil_div(in, kBlock);
    const T* w = args.w.template as<T>();
    auto* codes = static_cast<uint8_t*>(args.codes.data);
    float* scale = args.scale.template as<float>();
    CodeTally tally(args, call);
    call.pool->for_each_tile(matrices * down * across, [&](int64_t tile) {
      const int64_t m = tile / (down * across), o_block = tile / across % down, i_block = tile % across;
      const int64_t o_end = std::min(out, (o_block + 1) * kBlock),
                    i_end = std::min(in, (i_block + 1) * kBlock);
      const T* from = w + m * out * in;
      uint8_t* to = codes + m * out * in;
      BlockScale block;
      for (int64_t o = o_block * kBlock; o < o_end; ++o)
        for (int64_t i = i_block * kBlock; i < i_end; ++i) block.show(from[o * in + i]);
      const int e = block.exponent();
      const double per = std::ldexp(1.0, -e);
      scale[m * down * across + (turned ? i_block * down + o_block : o_block * across + i_block)] =
          scale_of(e);
      for (int64_t o = o_block * kBlock; o < o_end; ++o)
        for (int64_t i = i_block * kBlock; i < i_end; ++i)
          to[turned ? i * out + o : o * in + i] = code_of(from[o * in + i], per);
      if (!tally.counting()) return;
      CodeCounts counts;
      for (int64_t o = o_block * kBlock; o < o_end; ++o)
        for (int64_t i = i_block * kBlock; i < i_end; ++i)
          counts.see<E4M3>(static_cast<double>(from[o * in + i]), std::ldexp(1.0, e),
                           to[turned ? i * out + o : o * in + i]);
      tally.add(counts);
    });
    tally.write();
  }
};

bool is_fp8(const Invocation& call) { return call.integer("recipe") == static_cast<int64_t>(RecipeId::Fp8); }

template <template <class, template <class> class> class Body, template <class> class Args>
Kernel for_floats(const Invocation& call, tensor::Dtype dtype) {
  if (!is_fp8(call)) return nullptr;
  if (dtype == tensor::Dtype::F32) return &Body<float, Args>::run;
  if (dtype == tensor::Dtype::F64) return &Body<double, Args>::run;
  return nullptr;
}

template <template <class> class Args>
constexpr Binding rows_row() {
  return row<Args>(
      [](const Invocation& call) { return for_floats<Rows, Args>(call, Args<Arg>(call.args).x.dtype); });
}
template <template <class> class Args>
constexpr Binding weight_row() {
  return row<Args>(
      [](const Invocation& call) { return for_floats<Weight, Args>(call, Args<Arg>(call.args).w.dtype); });
}

constexpr Binding kTable[] = {
    rows_row<signature::quantize::Forward>(),
    rows_row<signature::quantize::BackwardInput>(),
    row<signature::turn_codes::BackwardWeight>(
        [](const Invocation& call) -> Kernel { return is_fp8(call) ? &Turn::run : nullptr; }),
    weight_row<signature::quantize_weight::Forward>(),
    weight_row<signature::quantize_weight::BackwardInput>(),
};

}  // namespace

std::span<const Binding> quantize_bindings() { return kTable; }

}  // namespace pleat::kernels
