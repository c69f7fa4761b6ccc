#include "verify/rank_place.h"

namespace pleat::verify {

RankPlace rank_place(const model::Mesh& m, int rank) {
  layout::Sizes sizes;
  sizes.world = m.world();
  sizes.tp = m.tp, sizes.cp = m.cp, sizes.pp = m.pp, sizes.vpp = m.vpp, sizes.ep = m.ep, sizes.etp = m.etp;
  sizes.optimizer_group = m.optimizer_group;
  return train::rank_place(layout::Layout(sizes), rank);
}

}  // namespace pleat::verify
