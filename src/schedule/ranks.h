// The programs of a layout: one per pipeline rank, since all ranks of a pipeline stage share theirs.
#pragma once

#include <vector>

#include "config/config.h"
#include "layout/layout.h"
#include "model/mesh.h"
#include "model/parameters.h"
#include "program/program.h"
#include "schedule/pass/pass.h"

namespace pleat::schedule {

// The layout that [parallel] asks for. Throws where the ranks do not make it, with the nearest ones that the model
// can have. `config` must be resolved.
layout::Layout layout_of(const config::Config& config, int64_t num_ranks);
// The sizes of the axes and how dispatch and context work.
model::Mesh mesh_of(const config::Config& config, const layout::Layout& layout);
// The same, after all that is judged by the number of ranks: every key has an effect on them, and the model
// breaks none of the layout's rules. Whoever plans or starts a run goes through this one door.
model::Mesh fitted_mesh(const config::Config& config, const layout::Layout& layout);
// What each pipeline rank holds, from parallel.pipeline_layout or evenly.
std::vector<model::Role> roles_of(const config::Config& config);

struct RankPrograms {
  layout::Layout layout;
  model::Mesh mesh;
  std::vector<model::Role> roles;
  std::vector<program::Program> programs;  // per pipeline rank
};
// With every pass over repeated stages written out (program/repeat.h), for who follows a step through time.
RankPrograms written_out(RankPrograms ranks);

// How the ranks of a run will meet that a launcher starts: with GPUs they are processes over NCCL, whose calls are
// enqueued. Whoever plans, prints or simulates a run before there are ranks to ask (comm::Endpoint::meeting) asks here.
// Threads that share one GPU meet on the host whatever this says.
program::Meeting meeting_of(const config::Config& config, int64_t num_ranks);

// `config` must be resolved. Throws when the ranks do not make the layout, or when model or batch break one
// of its rules (model/mesh_rules.h). After all passes, or before any; without options as meeting_of says.
RankPrograms build_ranks(const config::Config& config, int64_t num_ranks);
RankPrograms build_ranks(const config::Config& config, int64_t num_ranks, const PassOptions& options);
RankPrograms ranks_as_built(const config::Config& config, int64_t num_ranks);

// World ranks of the group of `rank`, in the order of its reductions: they count up along the axes tp, cp,
// dp, pp (experts: etp, ep, edp, pp), the first fastest, whatever parallel.order says. So an order that only
// moves the pipeline changes no bit; one that folds the meshes differently lets other tokens meet in an
// expert.
std::vector<int> group_members(const layout::Layout& layout, int rank, program::Group group);

}  // namespace pleat::schedule
