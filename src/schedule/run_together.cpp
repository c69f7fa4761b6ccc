#include "schedule/run_together.h"

#include <algorithm>

#include "base/counted.h"
#include "base/error.h"
#include "interpret/check/check.h"
#include "program/repeat.h"

namespace pleat::schedule {

interpret::NetworkReport require_runs_together(const interpret::Network& network, program::Meeting meeting) {
  interpret::NetworkReport report = interpret::check_network(network);
  if (!report.ok())
    base::fail_with(base::ExitCode::Internal, "the programs do not fit together: {}", report.faults.front());
  if (meeting == program::Meeting::OnDevice && !report.enqueued_fault().empty())
    base::fail(
        "this pipeline cannot run on several GPUs: over NCCL the exchanges of a rank run one after the "
        "other, "
        "and {}; parallel.vpp = 1 can",
        report.enqueued_fault());
  return report;
}

int host_waits_of(const RankPrograms& ranks) {
  int64_t most = 0;
  for (const program::Program& p : ranks.programs) {
    const program::StageRange repeated = program::repeated(p);
    int64_t waits = 0;
    for (program::StageId s = 0; s < static_cast<program::StageId>(p.stages.size()); ++s)
      if (class_of(p.stages[static_cast<size_t>(s)].op) == program::OpClass::Host)
        waits += program::passes_of(p, repeated, s);
    most = std::max(most, waits);
  }
  return static_cast<int>(most);
}

std::string meeting_text(const RankPrograms& ranks, program::Meeting meeting) {
  if (meeting == program::Meeting::OnHost) return "";
  const int waits = host_waits_of(ranks);
  const bool spread =
      ranks.mesh.size(program::Group::Dispatch) > 1 && ranks.mesh.dispatcher == model::Dispatcher::AllToAll;
  return fmt::format("ranks are processes with a GPU each, over NCCL: their exchanges are one chain, {}{}\n",
                     spread ? fmt::format("parallel.exchange is {}, ", name_of(ranks.mesh.exchange)) : "",
                     waits == 0 ? "and no host waits in a step"
                                : fmt::format("and a host waits {} in a step", base::counted(waits, "time")));
}

}  // namespace pleat::schedule
