// Token embedding on the GPU: a gather, and its transpose without atomics on floats: the tokens are sorted by
// row of the table, the rows of dy summed over runs of equal tokens.
#include <optional>

#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/embedding/cluster_sort.cuh"
#include "kernels/embedding/device_sort.cuh"
#include "kernels/embedding/embedding.h"
#include "kernels/embedding/sum_runs.cuh"
#include "kernels/math/coords.h"
#include "kernels/math/require.h"
#include "kernels/rows/gather.cuh"
#include "program/limits.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

// Scratch: the sorted tokens, the pieces of runs, what the sort needs.
template <int N, class T, class D>
CudaLaunch backward(const TokenRows& tokens, const T* dy, D* dtable, int64_t width, bool accumulate,
                    device::cuda::Lane& lane) {
  const TableBytes table{reinterpret_cast<std::byte*>(dtable), tokens.table_rows,
                         width * static_cast<int64_t>(sizeof(D)), N > 1};
  const int64_t list = (4 * tokens.num_tokens + 255) / 256 * 256, pieces_at = 2 * list,
                sort_at = pieces_at + (piece_bytes(tokens.num_tokens, width) + 255) / 256 * 256;
  const std::optional<ClusterSort> cluster =
      plan_cluster_sort(tokens.num_tokens, tokens.table_rows, !accumulate);
  const DeviceSort device = cluster ? DeviceSort{} : plan_device_sort(tokens);
  lane.need_scratch(sort_at + device.total);
  return [=, &lane] {
    CUstream_st* stream = lane.stream();
    std::byte* scratch = lane.scratch();
    const SortedTokens sorted{reinterpret_cast<int32_t*>(scratch), reinterpret_cast<int32_t*>(scratch + list),
                              static_cast<int>(tokens.num_tokens), static_cast<int>(tokens.table_rows)};
    if (cluster)
      launch_cluster_sort(stream, *cluster, tokens, sorted, table);
    else
      launch_device_sort(stream, device, scratch + sort_at, tokens, sorted, table, !accumulate);
    launch_run_sums<N>(
        stream, RunSums<T, D>{sorted, dy, dtable, reinterpret_cast<float*>(scratch + pieces_at), width, 0},
        accumulate);
  };
}

TokenRows tokens_of(const Invocation& call, const Arg& coords, int64_t table_rows) {
  return {call[0].as<int32_t>(), coords.present ? coords.as<int64_t>() + call.integer("group") : nullptr,
          call[0].dim(0), table_rows, padding_token(call)};
}

CudaLaunch prepare_forward(const Invocation& call, device::cuda::Lane& lane) {
  require_rank("embedding", "tokens", call[0], 1);
  require_rank("embedding", "table", call[1], 2);
  require_dtype("embedding", "tokens", call[0], tensor::Dtype::I32);
  require_coords("embedding", call, call[2]);
  require_shape("embedding", "y", call[3], {call[0].dim(0), call[1].dim(1)});
  require_same_dtype("embedding", call, {"", "table", "", "y"});
  if (!is_stored(call[1].dtype)) return {};
  const int64_t bytes = call[1].dim(1) * tensor::size_of(call[1].dtype);
  return
      [tokens = tokens_of(call, call[2], call[1].dim(0)), table = static_cast<const void*>(call[1].data),
       y = call[3].data, bytes, unit = common_unit({bytes}, {call[1].data, call[3].data}),
       stream = lane.stream()] { launch_gather(stream, table, y, tokens.num_tokens, bytes, unit, tokens); };
}

CudaLaunch prepare_backward_weight(const Invocation& call, device::cuda::Lane& lane) {
  require_rank("embedding", "tokens", call[0], 1);
  require_rank("embedding", "dtable", call[3], 2);
  require_dtype("embedding", "tokens", call[0], tensor::Dtype::I32);
  require_coords("embedding", call, call[2]);
  require_shape("embedding", "dy", call[1], {call[0].dim(0), call[3].dim(1)});
  const TokenRows tokens = tokens_of(call, call[2], call[3].dim(0));
  const int64_t width = call[3].dim(1), limit = program::kMaxTokens + 1;
  if (tokens.num_tokens >= limit || tokens.table_rows >= limit)
    base::fail("[embedding] {} tokens and {} rows: needed less than {} of each", tokens.num_tokens,
               tokens.table_rows, limit);
  const bool accumulate = call[3].into() == Into::Accumulate;
  const int64_t table_bytes = tokens.table_rows * width * tensor::size_of(call[3].dtype);
  if (!is_stored(call[1].dtype) || !is_stored(call[3].dtype)) return {};
  if (tokens.num_tokens == 0 || table_bytes == 0)
    return [=, &lane, to = call[3].data] {
      if (!accumulate) lane.fill(to, 0, table_bytes);
    };
  CudaLaunch out;
  with_float(call[1].dtype, [&](auto dy_zero) {
    with_float(call[3].dtype, [&](auto table_zero) {
      using T = decltype(dy_zero);
      using D = decltype(table_zero);
      const T* dy = call[1].as<T>();
      D* dtable = call[3].as<D>();
      // A thread's columns are whole 16 bytes of dy; so are the table's rows, for the zeros.
      constexpr int kRun = kWide<T>;
      out = width % std::max(kRun, kWide<D>) == 0 && all_aligned({dy, dtable})
                ? backward<kRun>(tokens, dy, dtable, width, accumulate, lane)
                : backward<1>(tokens, dy, dtable, width, accumulate, lane);
    });
  });
  return out;
}

}  // namespace

std::span<const CudaBinding> embedding_cuda_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr CudaBinding rows[] = {
      {KernelKind::embedding, Phase::Forward, prepare_forward},
      {KernelKind::embedding, Phase::BackwardWeight, prepare_backward_weight},
  };
  return rows;
}

}  // namespace pleat::kernels
