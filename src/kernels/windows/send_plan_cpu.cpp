// Which token goes to which rank, and where its rows will lie there. Serial: a few numbers per token.
#include <algorithm>

#include "kernels/windows/windows.h"
#include "program/limits.h"

namespace pleat::kernels {
namespace {

void send_plan(const Invocation& call) {
  const signature::send_plan::Forward<Arg> args(call.args);
  const int64_t T = args.token_row.dim(0), k = args.token_row.dim(1), P = args.token_slot.dim(1);
  const int64_t ranks = args.all_offsets.dim(0), stride = args.all_offsets.dim(1), E = stride - 1;
  const int64_t El = call.integer("experts_per_rank"), copies = call.integer("copies");
  const int64_t me = args.coords.as<int64_t>()[static_cast<size_t>(program::Group::Dispatch)];
  if (me < 0 || me >= ranks)
    base::fail_with(base::ExitCode::Internal, "[send_plan] this rank is {} of {}", me, ranks);
  const int32_t *token_row = args.token_row.as<int32_t>(), *idx = args.idx.as<int32_t>(),
                *all = args.all_offsets.as<int32_t>();
  int32_t *token_offsets = args.token_offsets.as<int32_t>(), *slot = args.token_slot.as<int32_t>();

  std::fill_n(token_offsets, P + 1, 0);
  for (int64_t t = 0; t < T; ++t) {
    std::fill_n(slot + t * P, P, -1);
    for (int64_t s = 0; s < k; ++s) {
      if (token_row[t * k + s] < 0) continue;
      const int64_t e = idx[t * k + s], p = e / El;
      if (e < 0 || p >= P)
        base::fail_with(base::ExitCode::Internal, "[send_plan] token {} chose expert {} of {}", t, e, E);
      if (slot[t * P + p] < 0) slot[t * P + p] = token_offsets[p + 1]++;
    }
  }
  for (int64_t p = 0; p < P; ++p) token_offsets[p + 1] += token_offsets[p];

  const auto count = [&](int64_t source, int64_t e) {
    return all[source * stride + e + 1] - all[source * stride + e];
  };
  int32_t *row_base = args.row_base.as<int32_t>(), *own = args.expert_offsets.as<int32_t>();
  for (int64_t p = 0; p < P; ++p) {
    int32_t row = 0;
    for (int64_t e = p * El; e < (p + 1) * El; ++e) {
      if (p == me / copies) own[e - p * El] = row;
      for (int64_t source = 0; source < ranks; ++source) {
        if (source == me) row_base[e] = row;
        row += count(source, e);
      }
    }
    if (p == me / copies) own[El] = row;
  }
}

constexpr Binding kTable[] = {row<signature::send_plan::Forward, send_plan>()};

}  // namespace

std::span<const Binding> send_plan_bindings() { return kTable; }

}  // namespace pleat::kernels
