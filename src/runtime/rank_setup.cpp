#include "runtime/rank_setup.h"

#include <algorithm>

#include "base/error.h"
#include "schedule/ranks.h"

namespace pleat::runtime {

using program::Group;

RankPlace rank_place(const layout::Layout& layout, int rank) {
  RankPlace place;
  place.rank = rank;
  for (int g = 0; g < program::kNumGroups; ++g) {
    std::vector<int> ranks = schedule::group_members(layout, rank, static_cast<Group>(g));
    const auto at = std::find(ranks.begin(), ranks.end(), rank);
    place.coords[size_t(g)] = at == ranks.end() ? -1 : at - ranks.begin();
    place.members[size_t(g)] = std::move(ranks);
  }
  return place;
}

RankPlace rank_place(const model::Mesh& m, int rank) {
  layout::Sizes sizes;
  sizes.world = m.world();
  sizes.tp = m.tp, sizes.cp = m.cp, sizes.pp = m.pp, sizes.vpp = m.vpp, sizes.ep = m.ep, sizes.etp = m.etp;
  sizes.optimizer_group = m.optimizer_group;
  return rank_place(layout::Layout(sizes), rank);
}

bool RankSetup::leads_replica() const {
  return place.at(Group::TensorContext) == 0 && place.at(Group::Pipeline) == 0;
}

RankSetup rank_setup(const config::Config& c, int world, int rank) {
  const layout::Layout layout = schedule::layout_of(c, world);
  RankSetup out;
  out.mesh = schedule::fitted_mesh(c, layout);
  out.place = rank_place(layout, rank);
  out.role = schedule::roles_of(c)[static_cast<size_t>(layout.attention(rank).pp)];
  return out;
}

RankSetup one_rank(const config::Config& c) { return rank_setup(c, 1, 0); }

}  // namespace pleat::runtime
