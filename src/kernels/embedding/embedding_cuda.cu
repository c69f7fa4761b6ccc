// Token embedding on the GPU: a gather, and its transpose without atomics on floats: the tokens are sorted by
// row of the table, the rows of dy summed over runs of equal tokens.
#include <optional>

#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/embedding/cluster_sort.cuh"
#include "kernels/embedding/device_sort.cuh"
#include "kernels/embedding/embedding.h"
#include "kernels/embedding/embedding_scratch.h"
#include "kernels/embedding/sum_runs.cuh"
#include "kernels/rows/gather.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

// Scratch: embedding_scratch.h.
template <int N, class T, class D>
CudaLaunch backward(const TokenRows& tokens, const T* dy, D* dtable, int64_t width, bool accumulate,
                    const Invocation& call, device::cuda::Lane& lane) {
  const TableBytes table{reinterpret_cast<std::byte*>(dtable), tokens.table_rows,
                         width * static_cast<int64_t>(sizeof(D)), N > 1};
  const EmbeddingScratch parts(tokens.num_tokens, tokens.table_rows, width);
  std::byte* const scratch = call.scratch_for(parts.total);
  const std::optional<ClusterSort> cluster =
      plan_cluster_sort(tokens.num_tokens, tokens.table_rows, !accumulate);
  const DeviceSort device = cluster ? DeviceSort{} : plan_device_sort(tokens, parts, scratch);
  const SortedTokens sorted{reinterpret_cast<int32_t*>(scratch + parts.sorted_keys),
                            reinterpret_cast<int32_t*>(scratch + parts.sorted_order),
                            static_cast<int>(tokens.num_tokens), static_cast<int>(tokens.table_rows)};
  const RunSums<T, D> sums{sorted, dy, dtable, reinterpret_cast<float*>(scratch + parts.pieces), width, 0};
  return [=, stream = lane.stream()] {
    if (cluster)
      launch_cluster_sort(stream, *cluster, tokens, sorted, table);
    else
      launch_device_sort(stream, device, tokens, sorted, table, !accumulate);
    launch_run_sums<N>(stream, sums, accumulate);
  };
}

TokenRows tokens_of(const Arg& tokens, const Arg& coords, int64_t table_rows, const Invocation& call) {
  return {tokens.as<int32_t>(), coords.present ? coords.as<int64_t>() + call.integer("group") : nullptr,
          tokens.dim(0), table_rows, padding_token(call)};
}

CudaLaunch prepare_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::embedding::Forward<Arg> args(call.args);
  if (!is_stored(args.table.dtype)) return {};
  const int64_t bytes = args.table.dim(1) * tensor::size_of(args.table.dtype);
  return [tokens = tokens_of(args.tokens, args.coords, args.table.dim(0), call),
          table = static_cast<const void*>(args.table.data), y = args.y.data, bytes,
          unit = common_unit({bytes}, {args.table.data, args.y.data}), stream = lane.stream()] {
    launch_gather(stream, table, y, tokens.num_tokens, bytes, unit, tokens);
  };
}

CudaLaunch prepare_backward_weight(const Invocation& call, device::cuda::Lane& lane) {
  const signature::embedding::BackwardWeight<Arg> args(call.args);
  const TokenRows tokens = tokens_of(args.tokens, args.coords, args.dtable.dim(0), call);
  const int64_t width = args.dtable.dim(1);
  const bool accumulate = args.dtable.into() == Into::Accumulate;
  const int64_t table_bytes = tokens.table_rows * width * tensor::size_of(args.dtable.dtype);
  if (!is_stored(args.dy.dtype) || !is_stored(args.dtable.dtype)) return {};
  if (tokens.num_tokens == 0 || table_bytes == 0)
    return [=, &lane, to = args.dtable.data] {
      if (!accumulate) lane.fill(to, 0, table_bytes);
    };
  CudaLaunch out;
  with_float(args.dy.dtype, [&](auto dy_zero) {
    with_float(args.dtable.dtype, [&](auto table_zero) {
      using T = decltype(dy_zero);
      using D = decltype(table_zero);
      const T* dy = args.dy.as<T>();
      D* dtable = args.dtable.as<D>();
      // A thread's columns are whole 16 bytes of dy; so are the table's rows, for the zeros.
      constexpr int kRun = kWide<T>;
      out = width % std::max(kRun, kWide<D>) == 0 && all_aligned({dy, dtable})
                ? backward<kRun>(tokens, dy, dtable, width, accumulate, call, lane)
                : backward<1>(tokens, dy, dtable, width, accumulate, call, lane);
    });
  });
  return out;
}

constexpr CudaBinding kTable[] = {
    row<signature::embedding::Forward>(prepare_forward),
    row<signature::embedding::BackwardWeight>(prepare_backward_weight),
};

}  // namespace

std::span<const CudaBinding> embedding_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
