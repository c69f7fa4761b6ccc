// Columns cut out of rows and put beside each other, on the GPU: copies of runs of units of 1 to 16 bytes
// between two row lengths, a thread per unit of the narrower side.
#include "kernels/cuda/bind.h"
#include "kernels/rows/contract.h"
#include "kernels/rows/gather.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

// All in units. Index is 32 bits where the launch has less than 2^32 units: a division costs a fifth then.
struct Runs {
  int64_t width, from_width, from_begin, to_width, to_begin;
};
template <class U, class Index>
__global__ void __launch_bounds__(kThreads) copy_runs(const U* from, U* to, int64_t total, Runs r) {
  const auto i = static_cast<Index>(blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x);
  if (i >= static_cast<Index>(total)) return;
  const Index row = i / static_cast<Index>(r.width), column = i - row * static_cast<Index>(r.width);
  to[row * r.to_width + r.to_begin + column] = from[row * r.from_width + r.from_begin + column];
}

// Index of a whole launch, as a value of the type that holds it.
template <class F>
void with_index(int64_t total, F&& f) {
  if (total < (int64_t{1} << 32) - kThreads)
    f(uint32_t{});
  else
    f(int64_t{});
}

void launch_runs(CUstream_st* stream, const void* from, void* to, int64_t rows, int64_t unit,
                 const Runs& bytes) {
  const Runs r{bytes.width / unit, bytes.from_width / unit, bytes.from_begin / unit, bytes.to_width / unit,
               bytes.to_begin / unit};
  const int64_t total = rows * r.width;
  if (total == 0) return;
  with_unit(unit, [&](auto zero) {
    with_index(total, [&](auto index) {
      using U = decltype(zero);
      copy_runs<U, decltype(index)>
          <<<static_cast<unsigned>(ceil_div(total, kThreads)), kThreads, 0, stream>>>(
              static_cast<const U*>(from), static_cast<U*>(to), total, r);
      PLEAT_CUDA_LAUNCHED();
    });
  });
}

// Between rows [T, a|b|c] and n blocks [n, T, (a+b+c)/n]; `cut` are the widths of the three in one block.
struct Heads {
  int64_t parts, rows, narrow;
  int64_t cut[3];
};
template <class U, class Index, bool kSplit>
__global__ void __launch_bounds__(kThreads) copy_heads(const U* from, U* to, int64_t total, Heads h) {
  const auto i = static_cast<Index>(blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x);
  if (i >= static_cast<Index>(total)) return;
  const Index of_part = i / static_cast<Index>(h.narrow);  // part * rows + row
  const int64_t column = i - of_part * static_cast<Index>(h.narrow);
  const Index part = of_part / static_cast<Index>(h.rows), row = of_part - part * static_cast<Index>(h.rows);
  const int which = column < h.cut[0] ? 0 : column < h.cut[0] + h.cut[1] ? 1 : 2;
  const int64_t before = which == 0 ? 0 : which == 1 ? h.cut[0] : h.cut[0] + h.cut[1];
  const int64_t joined = row * (h.parts * h.narrow) + h.parts * before +
                         part * (which == 0   ? h.cut[0]
                                 : which == 1 ? h.cut[1]
                                              : h.cut[2]) +
                         (column - before);
  if (kSplit)
    to[i] = from[joined];
  else
    to[joined] = from[i];
}

// `from` is joined when they are split, else cut.
template <bool kSplit>
CudaLaunch prepare_heads(const Invocation& call, const Arg& from_rows, const Arg& to_rows,
                         device::cuda::Lane& lane) {
  const HeadWidths of(call);
  const int64_t rows = (kSplit ? from_rows : to_rows).dim(0), item = tensor::size_of(from_rows.dtype);
  const auto bytes = [&](size_t i) { return of.widths[i] / of.parts * item; };
  const int64_t unit = common_unit({bytes(0), bytes(1), bytes(2)}, {from_rows.data, to_rows.data});
  const Heads h{
      of.parts, rows, of.whole / of.parts * item / unit, {bytes(0) / unit, bytes(1) / unit, bytes(2) / unit}};
  const int64_t total = of.parts * rows * h.narrow;
  return [=, from = static_cast<const void*>(from_rows.data), to = to_rows.data, stream = lane.stream()] {
    if (total == 0) return;
    with_unit(unit, [&](auto zero) {
      with_index(total, [&](auto index) {
        using U = decltype(zero);
        copy_heads<U, decltype(index), kSplit>
            <<<static_cast<unsigned>(ceil_div(total, kThreads)), kThreads, 0, stream>>>(
                static_cast<const U*>(from), static_cast<U*>(to), total, h);
        PLEAT_CUDA_LAUNCHED();
      });
    });
  };
}

CudaLaunch prepare_columns_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::columns::Forward<Arg> args(call.args);
  const int64_t begin = call.integer("begin"), width = args.y.dim(1), item = tensor::size_of(args.x.dtype);
  const Runs bytes{width * item, args.x.dim(1) * item, begin * item, width * item, 0};
  const int64_t unit =
      common_unit({bytes.width, bytes.from_width, bytes.from_begin}, {args.x.data, args.y.data});
  return [=, x = static_cast<const void*>(args.x.data), y = args.y.data, rows = args.x.dim(0),
          stream = lane.stream()] { launch_runs(stream, x, y, rows, unit, bytes); };
}

CudaLaunch prepare_columns_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  const signature::columns::BackwardInput<Arg> args(call.args);
  const int64_t item = tensor::size_of(args.a.dtype), a = args.a.dim(1) * item, b = args.b.dim(1) * item;
  const int64_t unit = common_unit({a, b}, {args.a.data, args.b.data, args.y.data});
  return [=, from_a = static_cast<const void*>(args.a.data), from_b = static_cast<const void*>(args.b.data),
          y = args.y.data, rows = args.a.dim(0), stream = lane.stream()] {
    launch_runs(stream, from_a, y, rows, unit, {a, a, 0, a + b, 0});
    launch_runs(stream, from_b, y, rows, unit, {b, b, 0, a + b, a});
  };
}

CudaLaunch prepare_split_heads_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::split_heads::Forward<Arg> args(call.args);
  return prepare_heads<true>(call, args.x, args.y, lane);
}

CudaLaunch prepare_split_heads_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  const signature::split_heads::BackwardInput<Arg> args(call.args);
  return prepare_heads<true>(call, args.x, args.y, lane);
}

CudaLaunch prepare_merge_heads_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::merge_heads::Forward<Arg> args(call.args);
  return prepare_heads<false>(call, args.x, args.y, lane);
}

CudaLaunch prepare_merge_heads_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  const signature::merge_heads::BackwardInput<Arg> args(call.args);
  return prepare_heads<false>(call, args.x, args.y, lane);
}

constexpr CudaBinding kTable[] = {
    row<signature::columns::Forward>(prepare_columns_forward),
    row<signature::columns::BackwardInput>(prepare_columns_backward_input),
    row<signature::split_heads::Forward>(prepare_split_heads_forward),
    row<signature::split_heads::BackwardInput>(prepare_split_heads_backward_input),
    row<signature::merge_heads::Forward>(prepare_merge_heads_forward),
    row<signature::merge_heads::BackwardInput>(prepare_merge_heads_backward_input),
};

}  // namespace

std::span<const CudaBinding> columns_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
