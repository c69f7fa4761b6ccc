// Codes of recipe fp8 on the GPU: the same bits as quantize_cpu.cpp. Every kernel reads its numbers once.
#include "device/cuda/check.h"
#include "kernels/contract.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/team.cuh"
#include "kernels/quantize/code_tile.cuh"
#include "program/code_rows.h"
#include "tensor/recipe.h"

namespace pleat::kernels {
namespace {

using namespace cuda;
using device::cuda::Lane;

bool is_fp8(const Invocation& call) {
  return call.integer("recipe") == static_cast<int64_t>(tensor::RecipeId::Fp8);
}

template <class Args>
CodeCounters counters_of(const Args& args, const Invocation& call) {
  CodeCounters out{};
  if constexpr (requires { args.counts; }) {
    if (!args.counts.present) return out;
    out.counts = reinterpret_cast<unsigned long long*>(args.counts.template as<int64_t>());
    out.largest = reinterpret_cast<unsigned long long*>(args.largest.template as<double>());
    if (args.coords.present) out.place = args.coords.template as<int64_t>() + call.integer("group");
  }
  return out;
}
// Counters that a launch overwrites begin at nothing.
template <class Args>
CudaLaunch clear_counters(const Args& args, Lane& lane) {
  if constexpr (requires { args.counts; }) {
    void* const counts =
        args.counts.present && args.counts.into() == Into::Overwrite ? args.counts.data : nullptr;
    void* const largest =
        args.largest.present && args.largest.into() == Into::Overwrite ? args.largest.data : nullptr;
    if (counts || largest)
      return [=, stream = lane.stream()] {
        if (counts) PLEAT_CUDA(cudaMemsetAsync(counts, 0, program::kNumCodeCounts * 8, stream));
        if (largest) PLEAT_CUDA(cudaMemsetAsync(largest, 0, 8, stream));
      };
  }
  return [] {};
}

// ---- Rows

constexpr int kRowThreads = 256, kEach = 16, kWarpColumns = 32 * kEach;  // numbers of a thread, of a warp

template <class T>
struct RowsOf {
  const T* x;
  const int32_t* num_rows;  // null: all of them are in use
  int64_t rows, n, blocks, pieces;
  uint8_t* codes;
  float* scale;
  const int32_t* token_row;  // null: a row counts once
  int top_k;
  CodeCounters counters;
};

// A warp takes four blocks of a row at a time.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kRowThreads) quantize_rows(const RowsOf<T> a) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t used = a.num_rows ? *a.num_rows : a.rows, units = used * a.pieces,
                warps = static_cast<int64_t>(gridDim.x) * (kRowThreads / 32);
  const bool counts = a.counters.counting();
  CodeCount own;
  for (int64_t unit = (blockIdx.x * static_cast<int64_t>(kRowThreads) + threadIdx.x) / 32; unit < units;
       unit += warps) {
    const int64_t r = unit / a.pieces, column = (unit - r * a.pieces) * kWarpColumns + lane * kEach;
    const T* const from = a.x + r * a.n + column;
    float x[kEach];
    if constexpr (kAligned) {
      constexpr int kLoads = kEach / kWide<T>;
      Wide<T> held[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i)
        held[i] = column < a.n ? load_streaming<Wide<T>>(from + i * kWide<T>) : Wide<T>::zero();
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        float part[kWide<T>];
        held[i].get(part);
#pragma unroll
        for (int j = 0; j < kWide<T>; ++j) x[i * kWide<T> + j] = part[j];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i) x[i] = column + i < a.n ? to_float(from[i]) : 0.0f;
    }
    const auto of_block = [](float size) {  // the largest of eight threads
#pragma unroll
      for (int step = 4; step > 0; step /= 2) size = fmaxf(size, __shfl_xor_sync(0xffffffffu, size, step));
      return size;
    };
    float size = 0;  // NaN is left out by fmaxf
#pragma unroll
    for (float v : x) size = fmaxf(size, fabsf(v));
    size = of_block(size);
    if (__any_sync(0xffffffffu, isinf(size))) {
      float finite = 0;
#pragma unroll
      for (float& v : x) {
        if (isinf(v)) v = __int_as_float(0x7fffffff);
        finite = fmaxf(finite, fabsf(v));
      }
      size = of_block(finite);
    }
    const int e = scale_exponent(size);
    const float per = power_of_two(-e);
    uint32_t codes[kEach / 4];
#pragma unroll
    for (int i = 0; i < kEach / 4; ++i)
      codes[i] = codes_of(x[4 * i] * per, x[4 * i + 1] * per, x[4 * i + 2] * per, x[4 * i + 3] * per);
    if (lane % 8 == 0 && column < a.n) a.scale[r * a.blocks + column / kBlock] = power_of_two(e);
    uint8_t* const to = a.codes + r * a.n + column;
    if constexpr (kAligned) {
      if (column < a.n) *reinterpret_cast<uint4*>(to) = make_uint4(codes[0], codes[1], codes[2], codes[3]);
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (column + i < a.n) to[i] = static_cast<uint8_t>(codes[i / 4] >> (i % 4 * 8));
    }
    if (!counts) continue;
    uint32_t times = 1;
    if (a.token_row) {
      times = 0;
      for (int first = 0; first < a.top_k; first += 32) {
        const bool taken = first + lane < a.top_k && a.token_row[r * a.top_k + first + lane] >= 0;
        times += static_cast<uint32_t>(__popc(__ballot_sync(0xffffffffu, taken)));
      }
    }
    own.see(x, codes, times);
    own.see_largest(size, times);
  }
  if (counts) add_counts<kRowThreads>(a.counters, own);
}

template <template <class> class Args>
CudaLaunch prepare_rows(const Invocation& call, Lane& lane) {
  const Args<Arg> args(call.args);
  if (!is_fp8(call)) return {};
  CudaLaunch out;
  with_float(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    RowsOf<T> a{};
    a.x = args.x.template as<T>();
    if (args.offsets.present) a.num_rows = args.offsets.template as<int32_t>() + args.offsets.dim(0) - 1;
    a.rows = args.x.dim(0), a.n = args.x.dim(1), a.blocks = args.scale.dim(1);
    a.pieces = ceil_div(a.n, kWarpColumns);
    a.codes = static_cast<uint8_t*>(args.codes.data), a.scale = args.scale.template as<float>();
    if (args.token_row.present)
      a.token_row = args.token_row.template as<int32_t>(), a.top_k = static_cast<int>(args.token_row.dim(1));
    a.counters = counters_of(args, call);
    const bool aligned = a.n % kEach == 0 && all_aligned({a.x, a.codes});
    const auto kernel = aligned ? &quantize_rows<T, true> : &quantize_rows<T, false>;
    const unsigned blocks =
        resident_blocks(kernel, kRowThreads, ceil_div(a.rows * a.pieces, kRowThreads / 32));
    out = [=, clear = clear_counters(args, lane), stream = lane.stream()] {
      clear();
      if (blocks == 0) return;
      kernel<<<blocks, kRowThreads, 0, stream>>>(a);
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return out;
}

// ---- Columns of rows

struct TurnOf {
  const uint8_t* codes;
  const float* scale;
  const int32_t* offsets;  // null: one group of all rows
  int num_groups, rows, n, across;
  int64_t room;
  uint8_t* columns;
  float* column_scale;
  int parts, tiles_of_part;  // of a block of rows
  bool words, wide;          // codes come as words, columns leave 16 bytes at a time
};

struct BlockRows {
  int from, to, count;  // rows of codes, their place in columns; count 0: none
};
// Which rows block `block` of the columns has; by a warp.
__device__ inline BlockRows rows_of_block(const TurnOf& a, int block) {
  if (!a.offsets) return {block * kBlock, block * kBlock, min(kBlock, a.rows - block * kBlock)};
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int before = 0;  // blocks of the groups before
  for (int first = 0; first < a.num_groups; first += 32) {
    const int g = first + lane;
    const int begin = g < a.num_groups ? a.offsets[g] : 0, end = g < a.num_groups ? a.offsets[g + 1] : 0;
    const int blocks = (end - begin + kBlock - 1) / kBlock;
    int sum = blocks;
    for (int by = 1; by < 32; by *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, by);
      if (lane >= by) sum += other;
    }
    const int skipped = before + sum - blocks;  // blocks ahead of this group
    const unsigned found = __ballot_sync(0xffffffffu, block >= skipped && block < skipped + blocks);
    if (found != 0) {
      const int source = __ffs(static_cast<int>(found)) - 1;
      const int inside = (block - __shfl_sync(0xffffffffu, skipped, source)) * kBlock;
      const int of = __shfl_sync(0xffffffffu, begin, source), to_end = __shfl_sync(0xffffffffu, end, source);
      return {of + inside, block * kBlock, min(kBlock, to_end - of - inside)};
    }
    before += __shfl_sync(0xffffffffu, sum, 31);
  }
  return {0, 0, 0};
}

// A block takes 128 rows of some tiles of columns.
__global__ void __launch_bounds__(kTileThreads) turn_codes(const TurnOf a) {
  __shared__ CodeTile tile;
  __shared__ float4 sizes[kTileThreads / 32][32];  // of each warp's rows, by column
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int block = static_cast<int>(blockIdx.x) / a.parts, part = static_cast<int>(blockIdx.x) % a.parts;
  const BlockRows rows = rows_of_block(a, block);
  if (rows.count <= 0) return;
  const int last = min(a.across, (part + 1) * a.tiles_of_part);
  for (int t = part * a.tiles_of_part; t < last; ++t) {
    const int column = t * kBlock + lane * 4, first = warp * kTileRows;
    // Values are taken 2^-8 times as large, so that floats hold them whatever the scale: codes go from 2^-9 to 448,
    // scales from 2^-126 to 2^127.
    constexpr int kShift = 8;
    uint32_t words[kTileRows];
    float scale = 0;  // of row `first` + lane
    if (lane < kTileRows && first + lane < rows.count)
      scale = a.scale[static_cast<int64_t>(rows.from + first + lane) * a.across + t] * power_of_two(-kShift);
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) {
      words[i] = 0;
      if (first + i >= rows.count || column >= a.n) continue;
      const uint8_t* const at = a.codes + static_cast<int64_t>(rows.from + first + i) * a.n + column;
      if (a.words) {
        words[i] = *reinterpret_cast<const uint32_t*>(at);
      } else {
        for (int c = 0; c < 4; ++c)
          if (column + c < a.n) words[i] |= static_cast<uint32_t>(at[c]) << (8 * c);
      }
    }
    float size[4] = {};
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) {
      const float of_row = __shfl_sync(0xffffffffu, scale, i);
      float v[4];
      values_of(words[i], v);
#pragma unroll
      for (int c = 0; c < 4; ++c) size[c] = fmaxf(size[c], fabsf(v[c] * of_row));
    }
    sizes[warp][lane] = make_float4(size[0], size[1], size[2], size[3]);
    __syncthreads();  // the tile's former codes have left, too
#pragma unroll
    for (int w = 0; w < kTileThreads / 32; ++w) {
      const float4 other = sizes[w][lane];
      size[0] = fmaxf(size[0], other.x), size[1] = fmaxf(size[1], other.y);
      size[2] = fmaxf(size[2], other.z), size[3] = fmaxf(size[3], other.w);
    }
    float per[4], rest[4];  // 2^(shift - e) in two factors, since one may be past a float
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int e = scale_exponent(size[c], kShift), up = min(kShift - e, 127);
      per[c] = power_of_two(up), rest[c] = power_of_two(kShift - e - up);
      if (warp == 0 && column + c < a.n)
        a.column_scale[static_cast<int64_t>(block) * a.n + column + c] = power_of_two(e);
    }
    uint32_t out[4][4];  // of each column, four rows to a word
#pragma unroll
    for (int i = 0; i < kTileRows; i += 4) {
      float v[4][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float of_row = __shfl_sync(0xffffffffu, scale, i + j);
        values_of(words[i + j], v[j]);
#pragma unroll
        for (int c = 0; c < 4; ++c) v[j][c] = v[j][c] * of_row * per[c] * rest[c];
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) out[c][i / 4] = codes_of(v[0][c], v[1][c], v[2][c], v[3][c]);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) tile.put(c, out[c]);
    __syncthreads();
    tile.store(a.columns + static_cast<int64_t>(t) * kBlock * a.room + rows.to, a.room,
               min(kBlock, a.n - t * kBlock), kBlock, a.wide);
  }
}

CudaLaunch prepare_turn(const Invocation& call, Lane& lane) {
  const signature::turn_codes::BackwardWeight<Arg> args(call.args);
  if (!is_fp8(call)) return {};
  TurnOf a{};
  a.codes = static_cast<const uint8_t*>(args.codes.data), a.scale = args.scale.as<float>();
  if (args.offsets.present)
    a.offsets = args.offsets.as<int32_t>(), a.num_groups = static_cast<int>(args.offsets.dim(0) - 1);
  a.rows = static_cast<int>(args.codes.dim(0)), a.n = static_cast<int>(args.codes.dim(1));
  a.across = static_cast<int>(args.scale.dim(1)), a.room = args.columns.dim(0);
  a.columns = static_cast<uint8_t*>(args.columns.data), a.column_scale = args.column_scale.as<float>();
  a.tiles_of_part = std::min(8, a.across);
  a.parts = a.across == 0 ? 0 : static_cast<int>(ceil_div(a.across, a.tiles_of_part));
  a.words = a.n % 4 == 0 && all_aligned({a.codes}, 4);
  a.wide = a.room % 16 == 0 && all_aligned({a.columns});
  const int64_t row_blocks = a.offsets ? ceil_div(a.room, kBlock) : ceil_div(a.rows, kBlock);
  const unsigned blocks = static_cast<unsigned>(row_blocks * a.parts);
  return [=, stream = lane.stream()] {
    if (blocks == 0) return;
    turn_codes<<<blocks, kTileThreads, 0, stream>>>(a);
    PLEAT_CUDA_LAUNCHED();
  };
}

// ---- Weights

template <class T>
struct WeightOf {
  const T* w;
  int out, in, down, across;
  uint8_t* codes;
  float* scale;
  CodeCounters counters;
  bool loads_wide, stores_wide;
};

// Four numbers as they lie in memory.
template <class T>
struct Four;
template <>
struct Four<float> {
  float4 raw;
  __device__ void get(float (&to)[4]) const { to[0] = raw.x, to[1] = raw.y, to[2] = raw.z, to[3] = raw.w; }
  __device__ void set(const float (&from)[4]) { raw = make_float4(from[0], from[1], from[2], from[3]); }
};
template <>
struct Four<bf16> {
  uint2 raw;  // two words: the compiler would give each number a register
  __device__ void get(float (&to)[4]) const {
    to[0] = __uint_as_float(raw.x << 16), to[1] = __uint_as_float(raw.x & 0xffff0000u);
    to[2] = __uint_as_float(raw.y << 16), to[3] = __uint_as_float(raw.y & 0xffff0000u);
  }
  __device__ void set(const float (&from)[4]) {  // of numbers that are bf16
    raw.x = __float_as_uint(from[0]) >> 16 | (__float_as_uint(from[1]) & 0xffff0000u);
    raw.y = __float_as_uint(from[2]) >> 16 | (__float_as_uint(from[3]) & 0xffff0000u);
  }
};

// A block of threads takes a block of the weight.
template <class T, bool kTurned>
__global__ void __launch_bounds__(kTileThreads, 2) quantize_weight(const WeightOf<T> a) {
  __shared__ CodeTile tile;
  const int lane = static_cast<int>(threadIdx.x) % 32, first = static_cast<int>(threadIdx.x) / 32 * kTileRows;
  const int matrix = static_cast<int>(blockIdx.x) / (a.down * a.across),
            inside = static_cast<int>(blockIdx.x) - matrix * a.down * a.across;
  const int o_block = inside / a.across, i_block = inside % a.across;
  const int rows = min(kBlock, a.out - o_block * kBlock), columns = min(kBlock, a.in - i_block * kBlock);
  const int64_t begin = static_cast<int64_t>(matrix) * a.out * a.in;
  const T* const from = a.w + begin + static_cast<int64_t>(o_block) * kBlock * a.in + i_block * kBlock;
  Four<T> held[kTileRows];
#pragma unroll
  for (int i = 0; i < kTileRows; ++i) {
    held[i] = {};
    if (first + i >= rows || lane * 4 >= columns) continue;
    const T* const at = from + static_cast<int64_t>(first + i) * a.in + lane * 4;
    if (a.loads_wide) {
      held[i] = *reinterpret_cast<const Four<T>*>(at);
    } else {
      float x[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) x[c] = lane * 4 + c < columns ? to_float(at[c]) : 0.0f;
      held[i].set(x);
    }
  }
  const auto largest = [&] {
    float size = 0;
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) {
      float x[4];
      held[i].get(x);
#pragma unroll
      for (float v : x) size = fmaxf(size, fabsf(v));
    }
    return block_max<kTileThreads>(size);
  };
  float size = largest();
  if (isinf(size)) {
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) {
      float x[4];
      held[i].get(x);
#pragma unroll
      for (float& v : x) v = isinf(v) ? __int_as_float(0x7fffffff) : v;
      held[i].set(x);
    }
    size = largest();
  }
  const int e = scale_exponent(size);
  const float per = power_of_two(-e);
  if (threadIdx.x == 0)
    a.scale[static_cast<int64_t>(matrix) * a.down * a.across +
            (kTurned ? i_block * a.down + o_block : o_block * a.across + i_block)] = power_of_two(e);
  if constexpr (kTurned) {
    uint32_t words[4][4];  // of each column, four rows to a word
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float x[4][4];
#pragma unroll
      for (int row = 0; row < 4; ++row) held[4 * i + row].get(x[row]);
#pragma unroll
      for (int c = 0; c < 4; ++c)
        words[c][i] = codes_of(x[0][c] * per, x[1][c] * per, x[2][c] * per, x[3][c] * per);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) tile.put(c, words[c]);
    __syncthreads();
    tile.store(a.codes + begin + static_cast<int64_t>(i_block) * kBlock * a.out + o_block * kBlock, a.out,
               columns, rows, a.stores_wide);
  } else {
    const bool counts = a.counters.counting();
    CodeCount own;
    uint8_t* const to =
        a.codes + begin + static_cast<int64_t>(o_block) * kBlock * a.in + i_block * kBlock + lane * 4;
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) {
      float x[4];
      held[i].get(x);
      const uint32_t codes[1] = {codes_of(x[0] * per, x[1] * per, x[2] * per, x[3] * per)};
      if (counts) own.see(x, codes, 1);
      if (first + i >= rows) continue;
      uint8_t* const at = to + static_cast<int64_t>(first + i) * a.in;
      if (a.stores_wide && lane * 4 + 4 <= columns) {
        *reinterpret_cast<uint32_t*>(at) = codes[0];
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (lane * 4 + c < columns) at[c] = static_cast<uint8_t>(codes[0] >> (8 * c));
      }
    }
    if (!counts) return;
    own.see_largest(size, 1);
    add_counts<kTileThreads>(a.counters, own);
  }
}

template <template <class> class Args>
CudaLaunch prepare_weight(const Invocation& call, Lane& lane) {
  const Args<Arg> args(call.args);
  if (!is_fp8(call)) return {};
  const bool turned = call.integer("turned") != 0;
  const CodeCounters counters = counters_of(args, call);
  if (turned && counters.counts) return {};  // turned codes are not counted again
  const size_t rank = args.w.shape.size();
  const int64_t matrices = rank == 3 ? args.w.dim(0) : 1;
  CudaLaunch launch;
  with_float(args.w.dtype, [&](auto zero) {
    using T = decltype(zero);
    WeightOf<T> a{};
    a.w = args.w.template as<T>();
    a.out = static_cast<int>(args.w.dim(rank - 2)), a.in = static_cast<int>(args.w.dim(rank - 1));
    a.down = static_cast<int>(ceil_div(a.out, kBlock)), a.across = static_cast<int>(ceil_div(a.in, kBlock));
    a.codes = static_cast<uint8_t*>(args.codes.data), a.scale = args.scale.template as<float>();
    a.counters = counters;
    a.loads_wide = a.in % 4 == 0 && all_aligned({a.w}, 4 * sizeof(T));
    a.stores_wide =
        turned ? a.out % 16 == 0 && all_aligned({a.codes}) : a.in % 4 == 0 && all_aligned({a.codes}, 4);
    const unsigned blocks = static_cast<unsigned>(matrices * a.down * a.across);
    const auto kernel = turned ? &quantize_weight<T, true> : &quantize_weight<T, false>;
    launch = [=, clear = clear_counters(args, lane), stream = lane.stream()] {
      clear();
      if (blocks == 0) return;
      kernel<<<blocks, kTileThreads, 0, stream>>>(a);
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return launch;
}

constexpr CudaBinding kTable[] = {
    row<signature::quantize::Forward>(prepare_rows<signature::quantize::Forward>),
    row<signature::quantize::BackwardInput>(prepare_rows<signature::quantize::BackwardInput>),
    row<signature::turn_codes::BackwardWeight>(prepare_turn),
    row<signature::quantize_weight::Forward>(prepare_weight<signature::quantize_weight::Forward>),
    row<signature::quantize_weight::BackwardInput>(prepare_weight<signature::quantize_weight::BackwardInput>),
};

}  // namespace

std::span<const CudaBinding> quantize_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
