// Auxiliary losses on the GPU: counts first (aux_counts.cuh), then losses and gradients (aux_losses.cuh).
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/shared_limit.cuh"
#include "kernels/router/aux_losses.cuh"
#include "kernels/router/router.h"

namespace pleat::kernels {
namespace {

CudaLaunch prepare_router_aux(const Invocation& call, device::cuda::Lane& lane) {
  const signature::router_aux::BackwardInput<Arg> args(call.args);
  using namespace cuda;
  using namespace cuda::aux;
  if (args.logits.dtype != tensor::Dtype::F32) return {};
  const Settings set(call);
  const int64_t T = args.logits.dim(0), E = set.experts;
  const bool own = set.needs_own_counts(), by_document = set.coef[kSequence] != 0;
  int64_t tokens_per_warp = 1;
  if (E <= kMaxTeamExperts) with_token_team(E, [&](auto team) { tokens_per_warp = team.kTokens; });
  const int64_t blocks = std::clamp<int64_t>(ceil_div(T, tokens_per_warp * kWarps), 1, kMaxBlocks);
  const int64_t document_bytes = by_document ? aux_document_bytes(T, E) : 0,
                documents_at = 8 * kNumPartials * blocks;
  std::byte* const scratch = call.scratch_for(documents_at + document_bytes);
  const Counters counters(lane, 2 + E);
  const float* logits = args.logits.as<float>();
  const uint8_t* valid = args.valid.as<uint8_t>();
  const int32_t* doc_start = args.doc_start.as<int32_t>();
  const double* norm = args.norm.as<double>();
  const int64_t *given_counts = args.counts.as<int64_t>(), *given_tokens = args.tokens.as<int64_t>();
  float* dlogits = args.dlogits.as<float>();
  double* losses = args.losses.as<double>();
  const bool add = args.dlogits.into() == Into::Accumulate,
             add_losses = args.losses.into() == Into::Accumulate;
  const bool wide = rows_are_wide(logits, E) && rows_are_wide(dlogits, E);
  const bool in_teams = E <= kMaxTeamExperts && set.top_k <= kMaxTeamChoices;
  const unsigned grid = static_cast<unsigned>(blocks);
  const auto counts_of = [=] {
    Counts counts{};
    counts.arrived = counters.data();
    counts.tokens = counts.arrived + 1;
    counts.experts = counts.tokens + 1;
    counts.doc_tokens = reinterpret_cast<int*>(scratch + documents_at);
    counts.doc_experts = counts.doc_tokens + T;
    return counts;
  };
  CudaLaunch counting, out;
  const size_t room = static_cast<size_t>(E) * 4;
  if (own && in_teams) {
    with_token_team(E, [&](auto team) {
      counting = [=, &lane] {
        count_in_teams<decltype(team)>
            <<<grid, kThreads, room, lane.stream()>>>(set, wide, logits, valid, doc_start, T, counts_of());
        PLEAT_CUDA_LAUNCHED();
      };
    });
  } else if (own) {
    with_elements_per_lane(E, [&](auto per_lane) {
      constexpr int P = per_lane();
      counting = [=, &lane] {
        count<P><<<grid, kThreads, room, lane.stream()>>>(set, logits, valid, doc_start, T, counts_of());
        PLEAT_CUDA_LAUNCHED();
      };
    });
  }
  const auto with = [&](auto team) {
    const size_t shared = Weights::bytes(team.kLanes * team.kElements);
    using Kernel = decltype(&losses_and_gradients<decltype(team), true>);
    Kernel kernel = &losses_and_gradients<decltype(team), true>;
    if constexpr (team.kElements <= 16)
      if (set.score == Score::Softmax && !by_document) kernel = &losses_and_gradients<decltype(team), false>;
    allow_shared(reinterpret_cast<const void*>(kernel), static_cast<int64_t>(shared),
                 fmt::format("[router_aux] {} experts", E));
    out = [=, &lane] {
      if (by_document) lane.fill(counts_of().doc_tokens, 0, document_bytes);
      if (counting) counting();
      kernel<<<grid, kThreads, shared, lane.stream()>>>(
          set, wide, logits, valid, doc_start, norm, given_counts, given_tokens, counts_of(), T, dlogits, add,
          reinterpret_cast<double*>(scratch), losses, add_losses);
      PLEAT_CUDA_LAUNCHED();
    };
  };
  if (E <= kMaxTeamExperts)
    with_token_team(E, with);
  else
    with(TokenTeam<32, 128>{});
  return out;
}

constexpr CudaBinding kTable[] = {
    row<signature::router_aux::BackwardInput>(prepare_router_aux),
};

}  // namespace

std::span<const CudaBinding> router_aux_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
