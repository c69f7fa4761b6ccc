#include "cuda/routing_support.h"

#include <algorithm>

namespace pleat::kernels::testing {

using tensor::Dtype;

Tensor random_choice(int64_t num_tokens, int64_t top_k, int64_t experts, uint64_t seed, bool one) {
  Tensor idx = Tensor::zeros(Dtype::I32, {num_tokens, top_k});
  const base::RandomStream stream(seed, base::RandomUse::Test, 0, 9);
  for (int64_t t = 0; t < num_tokens; ++t) {
    std::vector<std::pair<double, int64_t>> order;
    for (int64_t e = 0; e < experts; ++e)
      if (experts < 2 * top_k || e % 4 != 1)
        order.push_back(
            {one ? static_cast<double>(e) : stream.uniform(static_cast<uint64_t>(t * experts + e)), e});
    if (one)
      for (size_t e = 0; e < order.size(); ++e) order[e].second = static_cast<int64_t>(e);
    std::sort(order.begin(), order.end());
    std::vector<int64_t> pick;
    for (int64_t s = 0; s < top_k; ++s) pick.push_back(order[static_cast<size_t>(s)].second);
    std::sort(pick.begin(), pick.end());
    for (int64_t s = 0; s < top_k; ++s)
      idx.set(t * top_k + s, static_cast<double>(pick[static_cast<size_t>(s)]));
  }
  return idx;
}

Tensor some_valid(int64_t num_tokens, bool all) {
  Tensor valid = Tensor::zeros(Dtype::U8, {num_tokens});
  for (int64_t t = 0; t < num_tokens; ++t) valid.set(t, all || t % 4 != 2 ? 1 : 0);
  return valid;
}

RowPlan cpu_plan(int64_t num_tokens, int64_t top_k, int64_t experts, int64_t rows, int64_t capacity, bool pad,
                 bool one) {
  RowPlan p{random_choice(num_tokens, top_k, experts, 3, one),
            Tensor::normal(Dtype::F32, {num_tokens, top_k}, 4),
            Tensor::nan(Dtype::I32, {experts + 1}),
            Tensor::nan(Dtype::I32, {rows}),
            Tensor::nan(Dtype::I32, {rows}),
            Tensor::nan(Dtype::I32, {num_tokens, top_k}),
            Tensor::nan(Dtype::I64, {1})};
  call(program::KernelKind::dispatch_plan, program::Phase::Forward,
       {in(p.idx), in(p.probs), none(), out(p.offsets), out(p.row_token), out(p.row_slot), out(p.token_row),
        out(p.dropped)},
       {{"capacity", double(capacity)},
        {"experts", double(experts)},
        {"pad", double(pad)},
        {"policy", 0},
        {"top_k", double(top_k)}});
  return p;
}

}  // namespace pleat::kernels::testing
