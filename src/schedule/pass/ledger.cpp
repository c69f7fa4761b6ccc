#include "schedule/pass/ledger.h"

#include <fmt/format.h>

#include <cmath>

#include "interpret/check/check.h"
#include "program/repeat.h"
#include "schedule/pass/pass.h"

namespace pleat::schedule {

using program::Program;
using program::Stage;

LedgerRow change(const LedgerRow& from, const LedgerRow& to) {
  LedgerRow out = to;
  out.stages -= from.stages;
  out.step_ns -= from.step_ns;
  for (size_t i = 0; i < out.at_peak.size(); ++i)
    out.at_peak[i] -= from.at_peak[i], out.arena[i] -= from.arena[i];
  for (size_t i = 0; i < out.sent.size(); ++i) out.sent[i] -= from.sent[i];
  return out;
}

LedgerRow measure(std::string name, const config::Config& config, const RankPrograms& ranks,
                  size_t pipeline_rank, const Ground& ground) {
  const Program& p = ranks.programs[pipeline_rank];
  const interpret::Network network = interpret::network_of_roles(ranks.programs);
  const interpret::Plan plan = interpret::plan(p, program::Order(p, *network.nodes[pipeline_rank].edges));
  LedgerRow out;
  out.name = std::move(name);
  out.stages = static_cast<int64_t>(p.stages.size());
  for (size_t i = 0; i < out.at_peak.size(); ++i) {
    const interpret::SpacePlan& space = plan.of(static_cast<program::Space>(i));
    out.at_peak[i] = space.live_peak_bytes, out.arena[i] = space.arena_bytes;
  }
  std::array<double, program::kNumGroups> sent{};
  const program::StageRange repeated = program::repeated(p);
  for (program::StageId s = 0; s < static_cast<program::StageId>(p.stages.size()); ++s) {
    const Stage& stage = p.stages[static_cast<size_t>(s)];
    sent[static_cast<size_t>(stage.group)] +=
        cost::sent_bytes(ranks.mesh, p, stage) * static_cast<double>(program::passes_of(p, repeated, s));
  }
  for (size_t i = 0; i < sent.size(); ++i) out.sent[i] = std::llround(sent[i]);
  out.step_ns = SimulatedStep(config, ranks, ground).run().step_ns;
  return out;
}

std::vector<LedgerRow> ledger(const config::Config& config, int64_t num_ranks, size_t pipeline_rank,
                              const Ground& ground) {
  RankPrograms ranks = ranks_as_built(config, num_ranks);
  for (const Program& p : ranks.programs)
    interpret::require_ok(interpret::check(p), fmt::format("program {} as built", p.name));
  const program::Meeting meeting = meeting_of(config, num_ranks);
  std::vector<LedgerRow> rows = {measure("as built", config, ranks, pipeline_rank, ground)};
  for (const Pass& pass : pass_table()) {
    bool any = false;
    for (Program& p : ranks.programs)
      if (pass.wanted(config, p, meeting)) p = apply_pass(pass, std::move(p), config, meeting), any = true;
    if (any) rows.push_back(measure(std::string(pass.name), config, ranks, pipeline_rank, ground));
  }
  return rows;
}

}  // namespace pleat::schedule
