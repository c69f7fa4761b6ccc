// The order of routed rows on the GPU: a stable counting sort by expert in two launches (count and scan,
// place). With a capacity, choices are sorted into cells first and a block per bucket then keeps its own.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/halt.cuh"
#include "kernels/dispatch/contract.h"
#include "kernels/dispatch/plan_kernels.cuh"
#include "kernels/router/routing_checks.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

// A bucket is what has a capacity of its own: an expert, or an expert and a piece of the tokens.
struct Choices {
  const int32_t *idx, *piece;
  int64_t num_choices;
  int top_k, experts, pieces;

  __host__ __device__ int num_buckets() const { return experts * pieces; }
  __device__ int operator()(int64_t i) const {
    const int e = idx[i];
    PLEAT_HALT_UNLESS(e >= 0 && e < experts, "[dispatch_plan] a choice is no expert");
    if (!piece) return e;
    const int p = piece[i / top_k];
    PLEAT_HALT_UNLESS(p >= 0 && p < pieces, "[dispatch_plan] a token is in no piece");
    return e * pieces + p;
  }
  __device__ int again(int64_t i) const { return piece ? idx[i] * pieces + piece[i / top_k] : idx[i]; }
};

// Choices of kept rows, one block per bucket.
__global__ void __launch_bounds__(kSelectThreads)
    select(Choices choices, const float* probs, int capacity, bool by_probability, bool pad, Sorted from,
           const int32_t* offsets, int64_t budget, int32_t* row_token, int32_t* row_slot,
           int32_t* token_row) {
  const int e = blockIdx.x, count = from.count[e];
  keep_some(from.cells + from.first_cell[e], count, capacity, by_probability, probs, choices.top_k,
            from.first_row[e], row_token, row_slot, token_row);
  if (pad) fill_bucket(from.first_row[e], count, capacity, row_token, row_slot);
  fill_tail(offsets[choices.experts], budget, row_token, row_slot);
}

CudaLaunch prepare_dispatch_plan(const Invocation& call, device::cuda::Lane& lane) {
  const signature::dispatch_plan::Forward<Arg> args(call.args);
  if (args.probs.dtype != tensor::Dtype::F32) return {};
  const int64_t T = args.idx.dim(0), k = args.idx.dim(1), E = call.integer("experts"),
                capacity = call.integer("capacity"), policy = call.integer("policy"),
                pieces = args.piece.present ? call.integer("pieces") : 1, budget = args.row_token.dim(0);
  const bool pad = call.integer("pad") != 0;
  require_index_range(args.row_token, T * k, E * pieces * capacity);
  const Choices choices{args.idx.as<int32_t>(), args.piece.as<int32_t>(), T * k,
                        static_cast<int>(k),    static_cast<int>(E),      static_cast<int>(pieces)};
  const int64_t buckets = E * pieces, chunks = sort_chunks(T * k);
  check_counts(args.idx, chunks, buckets);
  const float* probs = args.probs.as<float>();
  int32_t *offsets = args.offsets.as<int32_t>(), *row_token = args.row_token.as<int32_t>(),
          *row_slot = args.row_slot.as<int32_t>(), *token_row = args.token_row.as<int32_t>();
  int64_t* dropped = args.dropped.as<int64_t>();
  const bool add = args.dropped.into() == Into::Accumulate;
  Sorted sorted;
  sorted.before = reinterpret_cast<int*>(call.scratch_for(scratch_bytes(args, call, {})));
  sorted.count = sorted.before + buckets * chunks;
  sorted.first_cell = sorted.count + buckets;
  sorted.first_row = sorted.first_cell + buckets;
  sorted.cells = sorted.first_row + buckets;
  const Counters counters(lane, 1);
  const size_t shared = static_cast<size_t>(buckets) * 4;
  for (const void* kernel : {reinterpret_cast<const void*>(&place_rows<Choices>),
                             reinterpret_cast<const void*>(&place_cells<Choices>)})
    allow_shared(kernel, static_cast<int64_t>(shared * kSortWarps),
                 fmt::format("[dispatch_plan] {} experts, pieces or ranks", buckets));
  return [=, &lane, num_chunks = static_cast<int>(chunks), most = static_cast<int>(capacity)] {
    const unsigned blocks = static_cast<unsigned>(chunks);
    const RowRule rule{choices.pieces, most, pad, false, budget, offsets, dropped, add};
    count_and_scan<<<blocks, kScanThreads, shared, lane.stream()>>>(choices, num_chunks, rule, sorted,
                                                                    counters.data());
    PLEAT_CUDA_LAUNCHED();
    if (most == 0) {
      place_rows<<<blocks, kSortThreads, shared * kSortWarps, lane.stream()>>>(
          choices, sorted, offsets + choices.experts, budget, 0, false, row_token, row_slot, token_row);
    } else {
      place_cells<<<blocks, kSortThreads, shared * kSortWarps, lane.stream()>>>(choices, sorted);
      PLEAT_CUDA_LAUNCHED();
      select<<<static_cast<unsigned>(buckets), kSelectThreads, 0, lane.stream()>>>(
          choices, probs, most, policy == 0, pad, sorted, offsets, budget, row_token, row_slot, token_row);
    }
    PLEAT_CUDA_LAUNCHED();
  };
}

constexpr CudaBinding kTable[] = {
    row<signature::dispatch_plan::Forward>(prepare_dispatch_plan),
};

}  // namespace

std::span<const CudaBinding> dispatch_plan_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
