#include "verify/rank_place.h"

#include <algorithm>

namespace pleat::verify {
namespace {

// Ranks that differ from `rank` only along the axes of `in`, lower axis fastest.
struct Axis {
  int64_t size;
  bool in;
};

std::vector<int> group_of(int rank, const std::vector<Axis>& axes) {
  std::vector<int> out{0};
  int64_t stride = 1, left = rank;
  for (const Axis& axis : axes) {
    const int64_t at = left % axis.size;
    left /= axis.size;
    std::vector<int> next;
    for (int64_t i = axis.in ? 0 : at; i < (axis.in ? axis.size : at + 1); ++i)
      for (const int base : out) next.push_back(base + static_cast<int>(i * stride));
    out = std::move(next);
    stride *= axis.size;
  }
  return out;
}

}  // namespace

RankPlace rank_place(const model::Mesh& m, int rank) {
  using program::Group;
  RankPlace place;
  place.rank = rank;
  const auto set = [&](Group group, std::vector<int> ranks) {
    std::sort(ranks.begin(), ranks.end());
    const auto at = std::find(ranks.begin(), ranks.end(), rank);
    place.coords[size_t(group)] = at == ranks.end() ? -1 : at - ranks.begin();
    place.members[size_t(group)] = std::move(ranks);
  };
  const auto dense = [&](bool tp, bool cp, bool dp, bool pp) {
    return group_of(rank, {{m.tp, tp}, {m.cp, cp}, {m.dp, dp}, {m.pp, pp}});
  };
  const auto expert = [&](bool etp, bool ep, bool edp, bool pp) {
    return group_of(rank, {{m.etp, etp}, {m.ep, ep}, {m.edp, edp}, {m.pp, pp}});
  };
  set(Group::None, {rank});
  set(Group::Tensor, dense(true, false, false, false));
  set(Group::Context, dense(false, true, false, false));
  set(Group::Data, dense(false, false, true, false));
  set(Group::Pipeline, dense(false, false, false, true));
  set(Group::TensorContext, dense(true, true, false, false));
  set(Group::DataContext, dense(false, true, true, false));
  set(Group::TensorDataContext, dense(true, true, true, false));
  set(Group::World, dense(true, true, true, true));
  set(Group::ExpertTensor, expert(true, false, false, false));
  set(Group::Expert, expert(false, true, false, false));
  set(Group::ExpertData, expert(false, false, true, false));
  set(Group::Dispatch, expert(true, true, false, false));
  const std::vector<int> pipeline = place.members[size_t(Group::Pipeline)];
  set(Group::Ends, {pipeline.front(), pipeline.back()});
  return place;
}

}  // namespace pleat::verify
