// A plan of rows cut down to a budget, on the GPU: what every expert keeps (one block), the rows as they were
// (a copy, since they are compacted in place), and the choice within each expert (a block each). With nothing
// over the budget the last two find nothing to do.
#include "kernels/cuda/bind.h"
#include "kernels/dispatch/contract.h"
#include "kernels/dispatch/plan_kernels.cuh"
#include "program/overflow.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

// dispatch.h's common level, for counts reached through a function.
struct Level {
  int64_t level = 0, left = 0;

  template <class Count>
  __device__ Level(Count count, int n, int64_t budget) {
    const auto total = [&](int64_t at) {
      int64_t sum = 0;
      for (int i = 0; i < n; ++i) sum += min(count(i), at);
      return sum;
    };
    int64_t high = 0;
    for (int i = 0; i < n; ++i) high = max(high, count(i));
    while (level < high) {
      const int64_t middle = (level + high + 1) / 2;
      if (total(middle) <= budget)
        level = middle;
      else
        high = middle - 1;
    }
    left = budget - total(level);
  }
  // To be asked in ascending order, once each.
  __device__ int64_t keep(int64_t count) {
    if (count <= level) return count;
    return left-- > 0 ? level + 1 : level;
  }
};

struct Group {
  int ranks, experts, experts_per_rank, copies;
  int64_t budget;
};

// counts [ranks, E]; the experts [first, first + El) of one expert rank.
__device__ void trim_counts(const Group& g, int first, int* counts) {
  const auto of_expert = [&](int e) {
    int64_t sum = 0;
    for (int s = 0; s < g.ranks; ++s) sum += counts[s * g.experts + first + e];
    return sum;
  };
  Level experts(of_expert, g.experts_per_rank, g.budget);
  for (int e = 0; e < g.experts_per_rank; ++e) {
    const int64_t count = of_expert(e), kept = experts.keep(count);
    if (kept == count) continue;
    Level sources([&](int s) { return int64_t{counts[s * g.experts + first + e]}; }, g.ranks, kept);
    for (int s = 0; s < g.ranks; ++s) {
      int& c = counts[s * g.experts + first + e];
      c = static_cast<int>(sources.keep(c));
    }
  }
}

// Scratch: counts [ranks, E], the plan's offsets before [E+1], the choice of each row before [R], and whether
// anything is over the budget.
struct Room {
  int *counts, *offsets, *choices, *any;
};

__global__ void __launch_bounds__(kThreads)
    trim_offsets(Group g, const int64_t* coords, int32_t* all, int32_t* offsets, int64_t* dropped,
                 int64_t* overflow, Room room) {
  __shared__ int any;
  const int stride = g.experts + 1, E = g.experts, num_expert_ranks = g.ranks / g.copies;
  const int64_t me = coords[static_cast<size_t>(program::Group::Dispatch)];
  PLEAT_HALT_UNLESS(me >= 0 && me < g.ranks, "[trim_plan] this rank is not of the group");
  if (threadIdx.x == 0) any = 0;
  for (int e = threadIdx.x; e < stride; e += kThreads) {
    PLEAT_HALT_UNLESS(offsets[e] == all[me * stride + e],
                      "[trim_plan] this rank's plan is not the one the group was told of");
    room.offsets[e] = offsets[e];
  }
  for (int i = threadIdx.x; i < g.ranks * E; i += kThreads) {
    const int s = i / E, e = i % E;
    room.counts[i] = all[s * stride + e + 1] - all[s * stride + e];
  }
  __syncthreads();
  for (int q = threadIdx.x; q < num_expert_ranks; q += kThreads) {
    int64_t rows = 0;
    for (int s = 0; s < g.ranks; ++s)
      rows += all[s * stride + (q + 1) * g.experts_per_rank] - all[s * stride + q * g.experts_per_rank];
    if (rows <= g.budget) continue;
    any = 1;
    if (q == me / g.copies && overflow)
      overflow[0] = max(overflow[0],
                        program::encode_overflow(rows, coords[static_cast<size_t>(program::Group::World)]));
    trim_counts(g, q * g.experts_per_rank, room.counts);
  }
  __syncthreads();
  if (threadIdx.x == 0) room.any[0] = any;
  if (!any) return;
  for (int s = threadIdx.x; s < g.ranks; s += kThreads) {
    int at = 0;
    for (int e = 0; e <= E; ++e) {
      all[s * stride + e] = at;
      if (e < E) at += room.counts[s * E + e];
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < stride; e += kThreads) offsets[e] = all[me * stride + e];
  if (threadIdx.x == 0) dropped[0] += room.offsets[E] - all[me * stride + E];
}

__global__ void __launch_bounds__(kThreads)
    keep_choices(int experts, int top_k, const int32_t* row_token, const int32_t* row_slot, int64_t num_rows,
                 Room room) {
  const int64_t r = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (!room.any[0] || r >= num_rows || r >= room.offsets[experts]) return;
  PLEAT_HALT_UNLESS(row_token[r] >= 0, "[trim_plan] a plan with fillers cannot be cut");
  room.choices[r] = row_token[r] * top_k + row_slot[r];
}

__global__ void __launch_bounds__(kSelectThreads)
    trim_rows(int experts, int top_k, const float* probs, bool by_probability, const int32_t* offsets,
              int32_t* row_token, int32_t* row_slot, int32_t* token_row, Room room) {
  if (!room.any[0]) return;
  const int e = blockIdx.x, begin = room.offsets[e], count = room.offsets[e + 1] - begin;
  keep_some(room.choices + begin, count, offsets[e + 1] - offsets[e], by_probability, probs, top_k,
            offsets[e], row_token, row_slot, token_row);
  fill_tail(offsets[experts], room.offsets[experts], row_token, row_slot);
}

CudaLaunch prepare_trim_plan(const Invocation& call, device::cuda::Lane& lane) {
  const signature::trim_plan::Forward<Arg> args(call.args);
  if (args.probs.dtype != tensor::Dtype::F32) return {};
  const int64_t k = args.probs.dim(1), n = args.all_offsets.dim(0), E = args.offsets.dim(0) - 1,
                R = args.row_token.dim(0);
  const int64_t El = call.integer("experts_per_rank"), copies = call.integer("copies"),
                budget = call.integer("budget"), policy = call.integer("policy");
  const Group group{static_cast<int>(n), static_cast<int>(E), static_cast<int>(El), static_cast<int>(copies),
                    budget};
  const float* probs = args.probs.as<float>();
  const int64_t* coords = args.coords.as<int64_t>();
  int32_t *all = args.all_offsets.as<int32_t>(), *offsets = args.offsets.as<int32_t>(),
          *row_token = args.row_token.as<int32_t>(), *row_slot = args.row_slot.as<int32_t>(),
          *token_row = args.token_row.as<int32_t>();
  int64_t *dropped = args.dropped.as<int64_t>(), *overflow = args.overflow.as<int64_t>();
  Room room;
  room.counts = reinterpret_cast<int*>(call.scratch_for(scratch_bytes(args, call, {})));
  room.offsets = room.counts + n * E;
  room.choices = room.offsets + E + 1;
  room.any = room.choices + R;
  return [=, &lane, top_k = static_cast<int>(k)] {
    trim_offsets<<<1, kThreads, 0, lane.stream()>>>(group, coords, all, offsets, dropped, overflow, room);
    PLEAT_CUDA_LAUNCHED();
    if (R > 0) {
      keep_choices<<<static_cast<unsigned>(ceil_div(R, kThreads)), kThreads, 0, lane.stream()>>>(
          group.experts, top_k, row_token, row_slot, R, room);
      PLEAT_CUDA_LAUNCHED();
    }
    trim_rows<<<static_cast<unsigned>(E), kSelectThreads, 0, lane.stream()>>>(
        group.experts, top_k, probs, policy == 0, offsets, row_token, row_slot, token_row, room);
    PLEAT_CUDA_LAUNCHED();
  };
}

constexpr CudaBinding kTable[] = {
    row<signature::trim_plan::Forward>(prepare_trim_plan),
};

}  // namespace

std::span<const CudaBinding> trim_plan_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
