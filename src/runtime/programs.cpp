#include "runtime/programs.h"

#include <algorithm>

#include "base/error.h"
#include "cost/nccl_memory.h"
#include "model/overflow.h"
#include "runtime/constants.h"
#include "runtime/initialize.h"
#include "runtime/require_trainable.h"
#include "schedule/pass/pass.h"

namespace pleat::runtime {
Planned plan_training_step(const config::Config& config, const std::vector<model::Parameter>& table,
                           const ProgramChoice& choice) {
  return planned(schedule::apply_passes(
      schedule::build_training_step(config, table, choice.build), config,
      {.disabled = choice.disabled_passes, .edit = choice.edit, .meeting = choice.meeting}));
}

// Everything that is known before memory is taken.
struct Programs::Built {
  config::Config config;
  RankSetup setup;
  std::vector<model::Parameter> table;
  Options options;
  std::vector<Planned> programs;
  size_t train = kNone, rerun = kNone, evaluate = kNone, logits = kNone, gather = kNone;

  size_t add(Planned p) {
    programs.push_back(std::move(p));
    return programs.size() - 1;
  }
};

Programs::Built Programs::build(const config::Config& config, const ProgramChoice& asked, Crew* crew) {
  if (crew && crew->alone()) crew = nullptr;
  Built b;
  b.config = config;
  b.table = model::make_parameters(config);
  ProgramChoice choice = asked;
  b.options.device = device_of(config.device.kind);
  b.options.graph = config.device.graph;
  b.options.nan_memory = choice.nan_memory;
  b.options.bind_in_turn = choice.bind_in_turn;
  b.options.carrier = choice.carrier;
  b.options.num_threads = crew ? crew->num_threads() : static_cast<int>(config.device.threads);
  if (crew) {
    PLEAT_CHECK(!choice.logits, "logits are for one rank");
    b.setup = crew->setup();
    b.setup.mesh.exchange =
        crew->row_exchange(buffers_of(b.options.device), config.parallel.exchange == "windows");
    b.options.alike_in_process = std::max<int64_t>(1, crew->num_in_process() / b.setup.mesh.pp);
    choice.build.mesh = b.setup.mesh;
    choice.build.role = b.setup.role;
    choice.meeting = crew->meeting(buffers_of(b.options.device));
    b.options.groups = {
        [crew](const auto& lanes, comm::Buffers buffers, const StreamOf& stream_of) {
          crew->open_groups(lanes, buffers, stream_of);
        },
        [crew](program::Group group, comm::Buffers buffers, const std::shared_ptr<std::byte>& memory) {
          crew->share_windows(group, buffers, memory);
        },
        {[crew](program::Group group, const std::string& lane) { return crew->group(group, lane); },
         [crew](program::Group group) { return crew->windows(group); }}};
  }
  if (choice.train) {
    require_trainable(config);
    b.train = b.add(plan_training_step(config, b.table, choice));
    if (model::may_rerun(config, {&b.programs[b.train].program, 1}))
      b.rerun = b.add(plan_training_step(model::rerun_config(config), b.table, choice));
  }
  const auto passed = [&](program::Program p) {
    return runtime::planned(schedule::apply_passes(
        std::move(p), config, {.disabled = choice.disabled_passes, .meeting = choice.meeting}));
  };
  if (choice.evaluate) b.evaluate = b.add(passed(schedule::build_evaluation(config, b.table, choice.build)));
  if (choice.logits) b.logits = b.add(passed(schedule::build_logits(config, b.table)));
  if (choice.train && crew) b.gather = b.add(passed(schedule::build_gather(config, b.table, choice.build)));
  if (crew && choice.meeting == program::Meeting::OnDevice)
    for (const Planned& p : b.programs)
      b.options.exchange_bytes =
          std::max(b.options.exchange_bytes, cost::nccl_memory(b.setup.mesh, p.program).bytes);
  b.options.laps.done("programs and their plans");
  return b;
}

Programs::Programs(const config::Config& config, const ProgramChoice& choice, Crew* crew)
    : Programs(build(config, choice, crew)) {}

Programs::Programs(Built b)
    : Runtime(std::move(b.programs), b.options),
      config_(std::move(b.config)),
      setup_(std::move(b.setup)),
      table_(std::move(b.table)),
      train_(b.train),
      rerun_(b.rerun),
      evaluate_(b.evaluate),
      logits_(b.logits),
      gather_(b.gather) {
  write_constants(*this, config_.model, setup_.place);
}

void Programs::initialize() { initialize_weights(*this, config_, table_, setup_); }

void Programs::gather_weights() {
  if (gather_ != kNone) executor(gather_).run();
}

}  // namespace pleat::runtime
