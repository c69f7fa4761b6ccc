#include "schedule/ranks.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "config/rank_effect.h"
#include "layout/fit.h"
#include "layout/from_config.h"
#include "layout/nodes.h"
#include "model/mesh_rules.h"
#include "program/limits.h"
#include "program/repeat.h"
#include "schedule/build.h"

namespace pleat::schedule {

using layout::GroupKind;
using program::Group;

namespace {

// The groups of a program on the meshes of a layout, each with the mesh that orders its members.
struct Kind {
  Group group;
  GroupKind kind;
  bool expert = false;
};
constexpr Kind kKinds[] = {
    {Group::Tensor, GroupKind::Tensor},
    {Group::Context, GroupKind::Context},
    {Group::Data, GroupKind::Data},
    {Group::Pipeline, GroupKind::Pipeline},
    {Group::TensorContext, GroupKind::TensorContext},
    {Group::DataContext, GroupKind::DataContext},
    {Group::TensorDataContext, GroupKind::TensorContextData},
    {Group::Ends, GroupKind::Embedding},
    {Group::ExpertTensor, GroupKind::ExpertTensor, true},
    {Group::Expert, GroupKind::Expert, true},
    {Group::ExpertData, GroupKind::ExpertData, true},
    {Group::Dispatch, GroupKind::Dispatch, true},
};

std::tuple<int64_t, int64_t, int64_t, int64_t> order_key(const layout::Layout& layout, int rank,
                                                         bool expert) {
  if (expert) {
    const layout::ExpertPlace p = layout.expert(rank);
    return {p.pp, p.edp, p.ep, p.etp};
  }
  const layout::AttentionPlace p = layout.attention(rank);
  return {p.pp, p.dp, p.cp, p.tp};
}

bool has_pipeline(const config::Config& config) {
  try {
    layout::pipeline_of(config);
    return true;
  } catch (const base::Error&) {
    return false;
  }
}

// Whether the model can have other sizes than those asked for. Microbatches are easily changed: that is said.
layout::Judge judge_of(const config::Config& config) {
  return [&config](const layout::Sizes& s) -> std::optional<std::string> {
    config::Config c = config;
    c.parallel.tp = s.tp, c.parallel.cp = s.cp, c.parallel.pp = s.pp;
    c.parallel.ep = s.ep, c.parallel.etp = s.etp;
    if (!layout::owners_misfit(s).empty() || !has_pipeline(c)) return {};
    const model::Mesh mesh = mesh_of(c, layout::Layout(s));
    const int64_t multiple = mesh.dp * (mesh.vpp > 1 ? mesh.pp : 1);
    std::string also;
    if (c.train.num_microbatches % multiple != 0) {
      c.train.num_microbatches = multiple;
      also = fmt::format("train.num_microbatches a multiple of {}", multiple);
    }
    if (!model::layout_faults(c, mesh).empty()) return {};
    return also;
  };
}

}  // namespace

layout::Layout layout_of(const config::Config& config, int64_t num_ranks) {
  const layout::Sizes sizes = layout::sizes_of(config, num_ranks);
  layout::require_fit(sizes, judge_of(config));
  return layout::Layout(sizes);
}

namespace {

// Why GPUs that share experts have no windows; "": they have. GPUs of one machine reach each other's memory, until a run
// finds that they do not (runtime/crew.h).
std::string why_no_windows(const config::Config& config, const layout::Layout& layout) {
  const int64_t ranks = config.parallel.ep * config.parallel.etp, here = config.parallel.ranks_per_node;
  if (ranks > program::kMaxWindowRanks)
    return fmt::format("{} ranks share experts, and windows take at most {}", ranks,
                       program::kMaxWindowRanks);
  if (here > 0 && layout::num_crossing(layout, GroupKind::Dispatch, here) > 0)
    return fmt::format("ranks that share experts lie on several machines of {} ranks", here);
  return "";
}

// As parallel.exchange says; auto: windows between GPUs of one machine, as far as parallel.ranks_per_node tells.
model::RowExchange row_exchange(const config::Config& config, const layout::Layout& layout) {
  const std::string& asked = config.parallel.exchange;
  if (asked == "windows") return model::RowExchange::Windows;
  if (asked == "padded") return model::RowExchange::Padded;
  if (asked == "counted" || config.device.kind != "cuda") return model::RowExchange::Counted;
  return why_no_windows(config, layout).empty() ? model::RowExchange::Windows : model::RowExchange::Counted;
}

// Where parallel.exchange is auto, the layout decides whether there are stores that comm.exchange_sms could bound.
void require_stores_to_bound(const config::Config& config, const layout::Layout& layout) {
  if (config.comm.exchange_sms == 0 || config.parallel.exchange != "auto") return;
  if (const std::string why = why_no_windows(config, layout); !why.empty())
    base::fail(
        "comm.exchange_sms = {} has no effect here: {}, so that parallel.exchange = \"auto\" is "
        "counted; remove comm.exchange_sms",
        config.comm.exchange_sms, why);
}

}  // namespace

model::Mesh mesh_of(const config::Config& config, const layout::Layout& layout) {
  const config::ParallelConfig& p = config.parallel;
  model::Mesh mesh;
  mesh.tp = p.tp, mesh.cp = p.cp, mesh.pp = p.pp, mesh.vpp = p.vpp, mesh.dp = layout.dp();
  mesh.ep = p.ep, mesh.etp = p.etp, mesh.edp = layout.edp();
  mesh.bucket_bytes = p.bucket_mib << 20, mesh.optimizer_group = p.optimizer_group;
  mesh.dispatcher = p.dispatcher == "allgather" ? model::Dispatcher::AllGather : model::Dispatcher::AllToAll;
  mesh.context = model::context_kind(p.context);
  mesh.exchange = row_exchange(config, layout);
  mesh.exchange_sms = config.comm.exchange_sms;
  return mesh;
}

model::Mesh fitted_mesh(const config::Config& config, const layout::Layout& layout) {
  const model::Mesh mesh = mesh_of(config, layout);
  config::require_rank_effects(config, layout.world());
  require_stores_to_bound(config, layout);
  model::require_layout(config, mesh);
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

RankPrograms ranks_as_built(const config::Config& config, int64_t num_ranks) {
  RankPrograms out{layout_of(config, num_ranks), {}, {}, {}};
  out.mesh = fitted_mesh(config, out.layout);
  out.roles = roles_of(config);
  const auto table = model::make_parameters(config);
  for (const model::Role& role : out.roles)
    out.programs.push_back(build_training_step(config, table, {model::RoutingUse::Choose, out.mesh, role}));
  return out;
}

RankPrograms written_out(RankPrograms ranks) {
  for (program::Program& p : ranks.programs) p = program::unrolled(std::move(p));
  return ranks;
}

program::Meeting meeting_of(const config::Config& config, int64_t num_ranks) {
  return config.device.kind == "cuda" && num_ranks > 1 ? program::Meeting::OnDevice
                                                       : program::Meeting::OnHost;
}

RankPrograms build_ranks(const config::Config& config, int64_t num_ranks) {
  return build_ranks(config, num_ranks, {.meeting = meeting_of(config, num_ranks)});
}

RankPrograms build_ranks(const config::Config& config, int64_t num_ranks, const PassOptions& options) {
  RankPrograms out = ranks_as_built(config, num_ranks);
  for (program::Program& p : out.programs) p = apply_passes(std::move(p), config, options);
  return out;
}

std::vector<int> group_members(const layout::Layout& layout, int rank, Group group) {
  if (group == Group::None) return {rank};
  // Replicas of a parameter cut into runs of owners, neighbours in the order of the whole group.
  struct Parts {
    Group whole, inside, across;
    GroupKind kind;
  };
  for (const Parts& p :
       {Parts{Group::DataContext, Group::DataContextInside, Group::DataContextAcross, GroupKind::DataContext},
        Parts{Group::TensorDataContext, Group::TensorDataContextInside, Group::TensorDataContextAcross,
              GroupKind::TensorContextData},
        Parts{Group::ExpertData, Group::ExpertDataInside, Group::ExpertDataAcross, GroupKind::ExpertData}}) {
    if (group != p.inside && group != p.across) continue;
    const std::vector<int> whole = group_members(layout, rank, p.whole);
    const int64_t index = std::find(whole.begin(), whole.end(), rank) - whole.begin();
    const int64_t num_parts = static_cast<int64_t>(whole.size()) / layout.num_owners(p.kind);
    return group == p.inside ? layout::inside_part(whole, index, num_parts)
                             : layout::across_parts(whole, index, num_parts);
  }
  if (group == Group::World) {
    std::vector<int> all(static_cast<size_t>(layout.world()));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  const auto kind =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return k.group == group; });
  PLEAT_CHECK(kind != std::end(kKinds), "group {} has no place in a layout", name_of(group));
  std::vector<int> ranks = layout.group(kind->kind, rank);
  std::sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return order_key(layout, a, kind->expert) < order_key(layout, b, kind->expert);
  });
  return ranks;
}

}  // namespace pleat::schedule
