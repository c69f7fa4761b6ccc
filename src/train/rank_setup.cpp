#include "train/rank_setup.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "layout/from_config.h"
#include "model/mesh_rules.h"

namespace pleat::train {
namespace {

using layout::GroupKind;
using program::Group;

struct Kind {
  Group group;
  GroupKind kind;
  bool expert;
};
constexpr Kind kKinds[] = {
    {Group::Tensor, GroupKind::Tensor, false},
    {Group::Context, GroupKind::Context, false},
    {Group::Data, GroupKind::Data, false},
    {Group::Pipeline, GroupKind::Pipeline, false},
    {Group::TensorContext, GroupKind::TensorContext, false},
    {Group::DataContext, GroupKind::DataContext, false},
    {Group::TensorDataContext, GroupKind::TensorContextData, false},
    {Group::Ends, GroupKind::Embedding, false},
    {Group::ExpertTensor, GroupKind::ExpertTensor, true},
    {Group::Expert, GroupKind::Expert, true},
    {Group::ExpertData, GroupKind::ExpertData, true},
    {Group::Dispatch, GroupKind::Dispatch, true},
};

model::Role role_of(const config::Config& c, const layout::PipelineLayout& pipeline, int64_t stage) {
  model::Role role;
  role.pipeline_rank = static_cast<int>(stage);
  for (int64_t v = 0; v < c.parallel.vpp; ++v) {
    model::Chunk chunk;
    chunk.embedding = chunk.head = false;
    bool predicts = false;
    for (const layout::PipelineItem& item : pipeline.chunk(v, stage)) {
      chunk.embedding |= item.part == layout::Part::Embedding;
      chunk.head |= item.part == layout::Part::Loss;
      predicts |= item.part == layout::Part::Prediction;
      if (item.part == layout::Part::Layer) chunk.layers.push_back(static_cast<int>(item.index));
    }
    if (predicts && !chunk.head)
      base::fail("parallel.pipeline_layout = \"{}\": m must stand in the chunk of L", pipeline.text());
    role.chunks.push_back(std::move(chunk));
  }
  return role;
}

void require_model_fits(const config::Config& c, const model::Mesh& m) {
  const auto heads = [&](const char* key, int64_t n) {
    if (n % m.tp != 0) base::fail("parallel.tp = {} does not divide {} = {}", m.tp, key, n);
    if (m.context == model::ContextKind::AllToAll && (n / m.tp) % m.cp != 0)
      base::fail(
          "parallel.context = \"alltoall\" with parallel.cp = {} does not divide {} / parallel.tp = {}", m.cp,
          key, n / m.tp);
  };
  heads("model.num_heads", c.model.num_heads);
  if (c.model.attention != "mla") heads("model.num_kv_heads", c.model.num_kv_heads);
}

void require_batch_fits(const config::Config& c, const model::Mesh& m) {
  if (c.train.num_microbatches % m.dp != 0)
    base::fail(
        "train.num_microbatches = {} is the number of the whole step and must be divisible by the {} data "
        "replicas (dp = ranks / (tp x cp x pp) = {} / ({} x {} x {}))",
        c.train.num_microbatches, m.dp, m.world(), m.tp, m.cp, m.pp);
  if (m.cp > 1 && c.train.seq_len % (2 * m.cp) != 0)
    base::fail("train.seq_len = {} must be divisible by 2 x parallel.cp = {}: each rank holds two chunks",
               c.train.seq_len, 2 * m.cp);
  const int64_t rows = c.train.micro_batch * c.train.seq_len / m.cp;
  if (rows % m.tp != 0)
    base::fail(
        "the rows of a microbatch on one context rank, train.micro_batch x train.seq_len / parallel.cp = {} "
        "x "
        "{} / {} = {}, must be divisible by parallel.tp = {}",
        c.train.micro_batch, c.train.seq_len, m.cp, rows, m.tp);
}

}  // namespace

RankPlace rank_place(const layout::Layout& layout, int rank) {
  RankPlace place;
  place.rank = rank;
  const auto set = [&](Group group, std::vector<int> ranks) {
    const auto at = std::find(ranks.begin(), ranks.end(), rank);
    place.coords[size_t(group)] = at == ranks.end() ? -1 : at - ranks.begin();
    place.members[size_t(group)] = std::move(ranks);
  };
  for (const Kind& k : kKinds) {
    std::vector<int> ranks = layout.group(k.kind, rank);
    std::sort(ranks.begin(), ranks.end(), [&](int a, int b) {
      const auto key = [&](int r) {
        if (k.expert) {
          const layout::ExpertPlace p = layout.expert(r);
          return std::tuple(p.pp, p.edp, p.ep, p.etp);
        }
        const layout::AttentionPlace p = layout.attention(r);
        return std::tuple(p.pp, p.dp, p.cp, p.tp);
      };
      return key(a) < key(b);
    });
    set(k.group, std::move(ranks));
  }
  struct Parts {
    Group whole, inside, across;
    GroupKind kind;
  };
  for (const Parts& p :
       {Parts{Group::DataContext, Group::DataContextInside, Group::DataContextAcross, GroupKind::DataContext},
        Parts{Group::TensorDataContext, Group::TensorDataContextInside, Group::TensorDataContextAcross,
              GroupKind::TensorContextData},
        Parts{Group::ExpertData, Group::ExpertDataInside, Group::ExpertDataAcross, GroupKind::ExpertData}}) {
    const std::vector<int> whole = place.members[size_t(p.whole)];
    const int64_t num_parts = static_cast<int64_t>(whole.size()) / layout.num_owners(p.kind);
    set(p.inside, layout::inside_part(whole, place.at(p.whole), num_parts));
    set(p.across, layout::across_parts(whole, place.at(p.whole), num_parts));
  }
  std::vector<int> all(static_cast<size_t>(layout.world()));
  std::iota(all.begin(), all.end(), 0);
  set(Group::None, {rank});
  set(Group::World, std::move(all));
  return place;
}

bool RankSetup::leads_replica() const {
  return place.at(Group::TensorContext) == 0 && place.at(Group::Pipeline) == 0;
}

RankSetup rank_setup(const config::Config& c, int world, int rank) {
  const layout::Layout layout(layout::sizes_of(c, world));
  const config::ParallelConfig& p = c.parallel;
  RankSetup out;
  out.place = rank_place(layout, rank);
  model::Mesh& m = out.mesh;
  m.tp = p.tp, m.cp = p.cp, m.pp = p.pp, m.vpp = p.vpp, m.ep = p.ep, m.etp = p.etp;
  m.dp = layout.dp(), m.edp = layout.edp();
  m.bucket_bytes = p.bucket_mib << 20, m.optimizer_group = p.optimizer_group;
  m.dispatcher = p.dispatcher == "allgather" ? model::Dispatcher::AllGather : model::Dispatcher::AllToAll;
  m.context = model::context_kind(p.context);
  require_model_fits(c, m);
  require_batch_fits(c, m);
  model::require_layout(c, m);
  out.role = role_of(c, layout::pipeline_of(c), layout.attention(rank).pp);
  return out;
}

RankSetup one_rank(const config::Config& c) { return rank_setup(c, 1, 0); }

}  // namespace pleat::train
