#include "schedule/ranks.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "layout/from_config.h"
#include "model/mesh_rules.h"
#include "schedule/build.h"
#include "schedule/pass/pass.h"

namespace pleat::schedule {

using layout::GroupKind;
using program::Group;

model::Mesh mesh_of(const config::Config& config, const layout::Layout& layout) {
  const config::ParallelConfig& p = config.parallel;
  model::Mesh mesh;
  mesh.tp = p.tp, mesh.cp = p.cp, mesh.pp = p.pp, mesh.vpp = p.vpp, mesh.dp = layout.dp();
  mesh.ep = p.ep, mesh.etp = p.etp, mesh.edp = layout.edp();
  mesh.bucket_bytes = p.bucket_mib << 20, mesh.optimizer_group = p.optimizer_group;
  mesh.dispatcher = p.dispatcher == "allgather" ? model::Dispatcher::AllGather : model::Dispatcher::AllToAll;
  mesh.context = model::context_kind(p.context);
  return mesh;
}

std::vector<model::Role> roles_of(const config::Config& config) {
  const layout::PipelineLayout pipeline = layout::pipeline_of(config);
  std::vector<model::Role> roles;
  for (int64_t pp = 0; pp < config.parallel.pp; ++pp) {
    model::Role role;
    role.pipeline_rank = static_cast<int>(pp);
    for (int64_t vpp = 0; vpp < config.parallel.vpp; ++vpp) {
      model::Chunk chunk{false, false, {}};
      bool prediction = false;
      for (const layout::PipelineItem& item : pipeline.chunk(vpp, pp)) {
        chunk.embedding |= item.part == layout::Part::Embedding;
        chunk.head |= item.part == layout::Part::Loss;
        prediction |= item.part == layout::Part::Prediction;
        if (item.part == layout::Part::Layer) chunk.layers.push_back(static_cast<int>(item.index));
      }
      if (prediction && !chunk.head)
        base::fail("parallel.pipeline_layout '{}' has m in another chunk than L; needed both in one",
                   pipeline.text());
      role.chunks.push_back(std::move(chunk));
    }
    roles.push_back(std::move(role));
  }
  return roles;
}

RankPrograms build_ranks(const config::Config& config, int64_t num_ranks) {
  RankPrograms out{layout::Layout(layout::sizes_of(config, num_ranks)), {}, roles_of(config), {}};
  out.mesh = mesh_of(config, out.layout);
  if (config.train.num_microbatches % out.mesh.dp != 0)
    base::fail("train.num_microbatches = {} do not divide over {} data ranks", config.train.num_microbatches,
               out.mesh.dp);
  model::require_layout(config, out.mesh);
  const auto table = model::make_parameters(config);
  for (const model::Role& role : out.roles)
    out.programs.push_back(apply_passes(
        build_training_step(config, table, {model::RoutingUse::Choose, out.mesh, role}), config));
  return out;
}

namespace {

// A group cut into runs of owners, neighbours along tp, cp and dp in this order, whatever parallel.order is.
std::vector<int> part(const layout::Layout& layout, int rank, GroupKind kind, bool inside) {
  std::vector<int> all = layout.group(kind, rank);
  const auto key = [&](int r) {
    const layout::AttentionPlace a = layout.attention(r);
    return kind == GroupKind::ExpertData ? std::tuple(layout.expert(r).edp, int64_t{0}, int64_t{0})
                                         : std::tuple(a.dp, a.cp, a.tp);
  };
  std::sort(all.begin(), all.end(), [&](int a, int b) { return key(a) < key(b); });
  const int64_t index = std::find(all.begin(), all.end(), rank) - all.begin();
  const int64_t num_parts = static_cast<int64_t>(all.size()) / layout.num_owners(kind);
  return inside ? layout::inside_part(all, index, num_parts) : layout::across_parts(all, index, num_parts);
}

}  // namespace

std::vector<int> group_members(const layout::Layout& layout, int rank, Group group) {
  switch (group) {
    case Group::None:
      return {rank};
    case Group::Tensor:
      return layout.group(GroupKind::Tensor, rank);
    case Group::Context:
      return layout.group(GroupKind::Context, rank);
    case Group::Data:
      return layout.group(GroupKind::Data, rank);
    case Group::Pipeline:
      return layout.group(GroupKind::Pipeline, rank);
    case Group::Expert:
      return layout.group(GroupKind::Expert, rank);
    case Group::ExpertTensor:
      return layout.group(GroupKind::ExpertTensor, rank);
    case Group::ExpertData:
      return layout.group(GroupKind::ExpertData, rank);
    case Group::World:
      return layout.group(GroupKind::World, rank);
    case Group::TensorContext:
      return layout.group(GroupKind::TensorContext, rank);
    case Group::DataContext:
      return layout.group(GroupKind::DataContext, rank);
    case Group::TensorDataContext:
      return layout.group(GroupKind::TensorContextData, rank);
    case Group::Dispatch:
      return layout.group(GroupKind::Dispatch, rank);
    case Group::Ends:
      return layout.group(GroupKind::Embedding, rank);
    case Group::DataContextInside:
    case Group::DataContextAcross:
      return part(layout, rank, GroupKind::DataContext, group == Group::DataContextInside);
    case Group::TensorDataContextInside:
    case Group::TensorDataContextAcross:
      return part(layout, rank, GroupKind::TensorContextData, group == Group::TensorDataContextInside);
    case Group::ExpertDataInside:
    case Group::ExpertDataAcross:
      return part(layout, rank, GroupKind::ExpertData, group == Group::ExpertDataInside);
  }
  return {rank};
}

}  // namespace pleat::schedule
