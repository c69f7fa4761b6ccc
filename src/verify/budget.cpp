#include "verify/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace pleat::verify {

using program::Group;

double needed_budget(const config::Config& c, const model::Mesh& mesh, const std::vector<Routing>& routings) {
  const int64_t k = c.moe.top_k, own_experts = c.moe.num_experts / mesh.ep,
                tokens = c.train.micro_batch * c.train.seq_len / (mesh.cp * mesh.tp);
  int64_t most = 0;
  for (const Routing& routing : routings)
    for (int rank = 0; rank < mesh.world(); ++rank) {
      const runtime::RankPlace place = runtime::rank_place(mesh, rank);
      const int64_t first = place.at(Group::Expert) * own_experts;
      for (int64_t mb = 0; mb < c.train.num_microbatches / mesh.dp; ++mb)
        for (int64_t layer = 0; layer < config::num_all_layers(c); ++layer) {
          int64_t rows = 0;
          for (const int source : place.members[static_cast<size_t>(Group::Dispatch)]) {
            const runtime::RankPlace from = runtime::rank_place(mesh, source);
            const auto found =
                routing.find(fmt::format("mb{}.L{}", mb * mesh.dp + from.at(Group::Data), layer));
            if (found == routing.end()) continue;  // a dense layer
            const std::vector<int32_t> held = runtime::context_rows(c, mesh, from.at(Group::Context));
            for (int64_t t = 0; t < tokens; ++t) {
              const int32_t row = held[static_cast<size_t>(from.at(Group::Tensor) * tokens + t)];
              for (int64_t i = 0; i < k; ++i) {
                const int32_t expert = found->second[static_cast<size_t>(row * k + i)];
                rows += expert >= first && expert < first + own_experts;
              }
            }
          }
          most = std::max(most, rows);
        }
    }
  const double balanced = static_cast<double>(tokens * k * mesh.etp);
  return std::ceil(static_cast<double>(most) / balanced * 100) / 100;
}

std::string fit_budget(config::Config& c, const model::Mesh& mesh, const LayoutRun& recorded) {
  if (c.moe.token_budget <= 0 || c.moe.overflow == "rerun" || mesh.ep == 1) return "";
  std::vector<Routing> routings;
  for (const StepResults& s : recorded.steps) routings.push_back(s.routing);
  const double needed = needed_budget(c, mesh, routings), asked = c.moe.token_budget;
  if (needed <= asked) return "";
  c.moe.token_budget = needed;
  return fmt::format("moe.token_budget: {} -> {} (the routing of the small copy needs it)", asked, needed);
}

}  // namespace pleat::verify
