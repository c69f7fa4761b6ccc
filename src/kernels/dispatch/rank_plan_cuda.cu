// Row plans of a rank's own experts on the GPU, when the tokens of several ranks meet there: gathered
// (gather_plan) or exchanged (receive_plan).
#include "kernels/cuda/bind.h"
#include "kernels/dispatch/contract.h"
#include "kernels/dispatch/plan_kernels.cuh"
#include "kernels/router/routing_checks.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

// The kept choices of this rank's experts. With pad every (expert, source) is a bucket of its own.
struct LocalChoices {
  const int32_t *idx, *kept;
  const int64_t* place;  // of this rank in the group
  int64_t num_choices, choices_per_source;
  int top_k, experts_per_rank, copies, ranks;
  bool pad;

  __host__ __device__ int num_buckets() const { return experts_per_rank * (pad ? ranks : 1); }
  __device__ int operator()(int64_t i) const {
    const int all = ranks / copies * experts_per_rank;
    const int first = static_cast<int>(*place) / copies * experts_per_rank;
    PLEAT_HALT_UNLESS(first >= 0 && first + experts_per_rank <= all,
                      "[gather_plan] this rank has no experts");
    PLEAT_HALT_UNLESS(idx[i] >= 0 && idx[i] < all, "[gather_plan] a choice is no expert");
    const int e = idx[i] - first;
    if (kept[i] < 0 || e < 0 || e >= experts_per_rank) return -1;
    return pad ? e * ranks + static_cast<int>(i / choices_per_source) : e;
  }
};

// One block per (expert, source): where its rows begin among the sorted and among the received.
__global__ void __launch_bounds__(kThreads)
    place_received(const int32_t* all_offsets, const int64_t* place, int ranks, int stride,
                   int experts_per_rank, int copies, int64_t budget, int32_t* offsets, int32_t* source_row,
                   int32_t* sorted_row) {
  const int expert = blockIdx.x / ranks, source = blockIdx.x % ranks;
  const int first = static_cast<int>(*place) / copies * experts_per_rank;
  PLEAT_HALT_UNLESS(first >= 0 && first + experts_per_rank < stride,
                    "[receive_plan] this rank has no experts");
  const int32_t* mine = all_offsets + first;
  int64_t sorted = 0, received = 0, all = 0;
  for (int i = threadIdx.x; i < experts_per_rank * ranks; i += kThreads) {
    const int e = i / ranks, s = i % ranks;
    const int32_t* from = mine + static_cast<int64_t>(s) * stride;
    const int count = from[e + 1] - from[e];
    PLEAT_HALT_UNLESS(from[0] >= 0 && count >= 0, "[receive_plan] the offsets of a rank are not ascending");
    all += count;
    if (e < expert || (e == expert && s < source)) sorted += count;
    if (s < source || (s == source && e < expert)) received += count;
  }
  sorted = block_sum<kThreads>(sorted);
  received = block_sum<kThreads>(received);
  all = block_sum<kThreads>(all);
  PLEAT_HALT_UNLESS(
      all <= budget,
      "[receive_plan] routing needs more rows than the budget holds; a larger token budget or a "
      "capacity would fit");
  const int32_t* from = mine + static_cast<int64_t>(source) * stride;
  const int count = from[expert + 1] - from[expert];
  for (int i = threadIdx.x; i < count; i += kThreads) {
    source_row[sorted + i] = static_cast<int32_t>(received + i);
    sorted_row[received + i] = static_cast<int32_t>(sorted + i);
  }
  if (threadIdx.x == 0 && source == 0) offsets[expert] = static_cast<int32_t>(sorted);
  if (threadIdx.x == 0 && blockIdx.x == 0) offsets[experts_per_rank] = static_cast<int32_t>(all);
  fill_tail(all, budget, source_row, sorted_row);
}

struct Padded {
  const int32_t* all;
  const int64_t* place;
  int ranks, stride, experts_per_rank, copies;
  int64_t part, budget, returned;
  int32_t *offsets, *source_row, *sorted_row, *send_row, *returned_row;

  __device__ int first(int source, int rank) const {
    return all[static_cast<int64_t>(source) * stride + rank / copies * experts_per_rank];
  }
  __device__ int count(int source, int rank) const {
    return all[static_cast<int64_t>(source) * stride + (rank / copies + 1) * experts_per_rank] -
           first(source, rank);
  }
};

__global__ void __launch_bounds__(kThreads) clear_padded(Padded a) {
  const int64_t first = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x,
                stride = gridDim.x * static_cast<int64_t>(kThreads);
  for (int64_t i = first; i < a.ranks * a.part; i += stride) a.sorted_row[i] = a.send_row[i] = -1;
  for (int64_t i = first; i < a.budget; i += stride) a.source_row[i] = -1;
  for (int64_t i = first; i < a.returned; i += stride) a.returned_row[i] = -1;
}

// One block per (expert, source) of what comes, and one per rank of what goes.
__global__ void __launch_bounds__(kThreads) place_padded(Padded a) {
  const int me = static_cast<int>(*a.place);
  PLEAT_HALT_UNLESS(me >= 0 && me < a.ranks, "[padded_plan] this rank is not in its group");
  const int b = static_cast<int>(blockIdx.x), pairs = a.experts_per_rank * a.ranks;
  if (b >= pairs) {
    const int rank = b - pairs, count = a.count(me, rank), begin = a.first(me, rank);
    int64_t before = 0;
    for (int r = 0; r < rank; ++r) before += a.count(me, r);
    PLEAT_HALT_UNLESS(count <= a.part, "[padded_plan] more rows for a rank than a part has");
    for (int i = threadIdx.x; i < count; i += kThreads) {
      a.send_row[rank * a.part + i] = begin + i;
      a.returned_row[before + i] = static_cast<int32_t>(rank * a.part + i);
    }
    return;
  }
  const int expert = b / a.ranks, source = b % a.ranks;
  const int32_t* mine = a.all + me / a.copies * a.experts_per_rank;
  int64_t sorted = 0, all = 0;
  for (int i = threadIdx.x; i < pairs; i += kThreads) {
    const int e = i / a.ranks, s = i % a.ranks;
    const int32_t* from = mine + static_cast<int64_t>(s) * a.stride;
    const int count = from[e + 1] - from[e];
    all += count;
    if (e < expert || (e == expert && s < source)) sorted += count;
  }
  sorted = block_sum<kThreads>(sorted);
  all = block_sum<kThreads>(all);
  PLEAT_HALT_UNLESS(all <= a.budget,
                    "[padded_plan] routing needs more rows than the budget holds; a larger token budget or a "
                    "capacity would fit");
  const int32_t* from = mine + static_cast<int64_t>(source) * a.stride;
  const int count = from[expert + 1] - from[expert];
  const int64_t received = source * a.part + from[expert] - from[0];
  for (int i = threadIdx.x; i < count; i += kThreads) {
    a.source_row[sorted + i] = static_cast<int32_t>(received + i);
    a.sorted_row[received + i] = static_cast<int32_t>(sorted + i);
  }
  if (threadIdx.x == 0 && source == 0) a.offsets[expert] = static_cast<int32_t>(sorted);
  if (threadIdx.x == 0 && b == 0) a.offsets[a.experts_per_rank] = static_cast<int32_t>(all);
}

const int64_t* place_of(const Arg& coords) {
  return coords.as<int64_t>() + static_cast<size_t>(program::Group::Dispatch);
}

CudaLaunch prepare_gather_plan(const Invocation& call, device::cuda::Lane& lane) {
  const signature::gather_plan::Forward<Arg> args(call.args);
  const int64_t num_tokens = args.idx.dim(0), k = args.idx.dim(1), R = args.row_token.dim(0);
  const int64_t ranks = call.integer("ranks"), capacity = call.integer("capacity"),
                El = call.integer("experts_per_rank");
  const bool pad = call.integer("pad") != 0;
  require_index_range(args.row_token, num_tokens * k, pad ? El * ranks * capacity : 0);
  if (pad && El * ranks > kMaxExperts)
    refuse(args.idx, "{} experts of {} sources with padding, needed at most {} together on the GPU", El,
           ranks, kMaxExperts);

  LocalChoices choices{};
  choices.idx = args.idx.as<int32_t>();
  choices.kept = args.kept.as<int32_t>();
  choices.place = place_of(args.coords);
  choices.num_choices = num_tokens * k;
  choices.choices_per_source = std::max<int64_t>(1, num_tokens / ranks * k);
  choices.top_k = static_cast<int>(k);
  choices.experts_per_rank = static_cast<int>(El);
  choices.copies = static_cast<int>(call.integer("copies"));
  choices.ranks = static_cast<int>(ranks);
  choices.pad = pad;
  int32_t *offsets = args.offsets.as<int32_t>(), *row_token = args.row_token.as<int32_t>(),
          *row_slot = args.row_slot.as<int32_t>(), *token_row = args.token_row.as<int32_t>();
  const int64_t buckets = choices.num_buckets();
  const int64_t chunks = sort_chunks(num_tokens * k);
  check_counts(args.idx, chunks, buckets);
  Sorted sorted{};
  sorted.before = reinterpret_cast<int*>(call.scratch_for(scratch_bytes(args, call, {})));
  sorted.count = sorted.before + buckets * chunks;
  sorted.first_cell = sorted.count + buckets;
  sorted.first_row = sorted.first_cell + buckets;
  const Counters counters(lane, 1);
  const size_t shared = static_cast<size_t>(buckets) * 4;
  allow_shared(reinterpret_cast<const void*>(&place_rows<LocalChoices>),
               static_cast<int64_t>(shared * kSortWarps), fmt::format("[gather_plan] {} experts", buckets));
  return [=, &lane, num_chunks = static_cast<int>(chunks), most = pad ? static_cast<int>(capacity) : 0] {
    const unsigned blocks = static_cast<unsigned>(chunks);
    const RowRule rule{pad ? choices.ranks : 1, most, pad, pad, R, offsets, nullptr, false};
    count_and_scan<<<blocks, kScanThreads, shared, lane.stream()>>>(choices, num_chunks, rule, sorted,
                                                                    counters.data());
    PLEAT_CUDA_LAUNCHED();
    place_rows<<<blocks, kSortThreads, shared * kSortWarps, lane.stream()>>>(
        choices, sorted, offsets + choices.experts_per_rank, R, most, pad, row_token, row_slot, token_row);
    PLEAT_CUDA_LAUNCHED();
  };
}

CudaLaunch prepare_receive_plan(const Invocation& call, device::cuda::Lane& lane) {
  const signature::receive_plan::Forward<Arg> args(call.args);
  const int64_t ranks = args.all_offsets.dim(0), stride = args.all_offsets.dim(1), R = args.source_row.dim(0),
                El = call.integer("experts_per_rank");
  const int32_t* all_offsets = args.all_offsets.as<int32_t>();
  const int64_t* place = place_of(args.coords);
  int32_t *offsets = args.offsets.as<int32_t>(), *source_row = args.source_row.as<int32_t>(),
          *sorted_row = args.sorted_row.as<int32_t>();
  const int copies = static_cast<int>(call.integer("copies"));
  return [=, stream = lane.stream()] {
    place_received<<<static_cast<unsigned>(El * ranks), kThreads, 0, stream>>>(
        all_offsets, place, static_cast<int>(ranks), static_cast<int>(stride), static_cast<int>(El), copies,
        R, offsets, source_row, sorted_row);
    PLEAT_CUDA_LAUNCHED();
  };
}

CudaLaunch prepare_padded_plan(const Invocation& call, device::cuda::Lane& lane) {
  const signature::padded_plan::Forward<Arg> args(call.args);
  const Padded a{args.all_offsets.as<int32_t>(),
                 place_of(args.coords),
                 static_cast<int>(args.all_offsets.dim(0)),
                 static_cast<int>(args.all_offsets.dim(1)),
                 static_cast<int>(call.integer("experts_per_rank")),
                 static_cast<int>(call.integer("copies")),
                 call.integer("part"),
                 args.source_row.dim(0),
                 args.returned_row.dim(0),
                 args.offsets.as<int32_t>(),
                 args.source_row.as<int32_t>(),
                 args.sorted_row.as<int32_t>(),
                 args.send_row.as<int32_t>(),
                 args.returned_row.as<int32_t>()};
  return [=, stream = lane.stream()] {
    clear_padded<<<264, kThreads, 0, stream>>>(a);
    PLEAT_CUDA_LAUNCHED();
    place_padded<<<static_cast<unsigned>((a.experts_per_rank + 1) * a.ranks), kThreads, 0, stream>>>(a);
    PLEAT_CUDA_LAUNCHED();
  };
}

constexpr CudaBinding kTable[] = {
    row<signature::padded_plan::Forward>(prepare_padded_plan),
    row<signature::gather_plan::Forward>(prepare_gather_plan),
    row<signature::receive_plan::Forward>(prepare_receive_plan),
};

}  // namespace

std::span<const CudaBinding> rank_plan_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
