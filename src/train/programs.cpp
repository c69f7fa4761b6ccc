#include "train/programs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>

#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "interpret/check/check.h"
#include "model/overflow.h"
#include "model/rope.h"
#include "schedule/pass/pass.h"
#include "train/initialize.h"

namespace pleat::train {
namespace {

using program::Life;
using program::Owner;

Planned checked(program::Program program) {
  Planned out;
  out.program = std::move(program);
  interpret::require_ok(interpret::check(out.program), "program " + out.program.name);
  out.plan = interpret::plan(out.program);
  interpret::require_ok(interpret::check_plan(out.program, out.plan), "plan of program " + out.program.name);
  return out;
}

// Whether a step can ask for more rows than there are, and is then to be run again.
bool may_rerun(const config::Config& config, const program::Program& program) {
  return config.moe.overflow == "rerun" &&
         std::any_of(program.values.begin(), program.values.end(),
                     [](const program::Value& v) { return v.name == "overflow"; });
}

}  // namespace

Planned plan_training_step(const config::Config& config, const std::vector<model::Parameter>& table,
                           const ProgramChoice& choice) {
  return checked(schedule::apply_passes(schedule::build_training_step(config, table, choice.build), config,
                                        choice.disabled_passes));
}

Programs::Programs(const config::Config& config, const ProgramChoice& asked, Crew* crew)
    : config_(config),
      crew_(crew && !crew->alone() ? crew : nullptr),
      table_(model::make_parameters(config)),
      pool_(crew_ ? crew_->num_threads() : static_cast<int>(config.device.threads)) {
  const bool gpu = config.device.kind == "cuda";
  ProgramChoice choice = asked;
  if (crew_) {
    PLEAT_CHECK(!choice.logits, "logits are for one rank");
    setup_ = crew_->setup();
    choice.build.mesh = setup_.mesh;
    choice.build.role = setup_.role;
  }
  int64_t bytes = 0;
  if (choice.train)
    train_plan_ = plan_training_step(config_, table_, choice), any_ = &train_plan_,
    bytes = train_plan_.plan.arena_bytes;
  const bool reruns = choice.train && may_rerun(config_, train_plan_.program);
  if (reruns) {
    rerun_config_ = model::rerun_config(config_);
    rerun_plan_ = plan_training_step(rerun_config_, table_, choice);
    bytes = std::max(bytes, rerun_plan_.plan.arena_bytes);
    require_same_state();
  }
  if (choice.evaluate) {
    evaluate_plan_ = checked(schedule::build_evaluation(config_, table_, choice.build));
    any_ = &evaluate_plan_, bytes = std::max(bytes, evaluate_plan_.plan.arena_bytes);
  }
  if (choice.logits) {
    logits_plan_ = checked(schedule::build_logits(config_, table_));
    any_ = &logits_plan_, bytes = std::max(bytes, logits_plan_.plan.arena_bytes);
  }
  if (choice.train && crew_) {
    gather_plan_ = checked(schedule::build_gather(config_, table_, choice.build));
    bytes = std::max(bytes, gather_plan_.plan.arena_bytes);
  }
  PLEAT_CHECK(any_, "a run needs at least one program");
  if (gpu) {
    machine_ = std::make_unique<interpret::CudaMachine>(bytes);
    arena_ = std::make_unique<device::Arena>(any_->plan.persistent_bytes);
  } else {
    arena_ = std::make_unique<device::Arena>(bytes);
    arena_->fill_pattern();
  }
  open_groups();
  interpret::FindGroup groups;
  if (crew_)
    groups = [this](program::Group group, const std::string& lane) { return crew_->group(group, lane); };
  const auto bind = [&](const Planned& p) -> std::unique_ptr<interpret::Executor> {
    if (machine_)
      return std::make_unique<interpret::CudaExecutor>(
          p.program, p.plan, *machine_, interpret::CudaOptions{.graph = config_.device.graph}, groups);
    return std::make_unique<interpret::Executor>(p.program, p.plan, arena_->data(), pool_, groups);
  };
  if (choice.train) train_ = bind(train_plan_);
  if (reruns) rerun_ = bind(rerun_plan_);
  if (choice.evaluate) evaluate_ = bind(evaluate_plan_);
  if (choice.logits) logits_ = bind(logits_plan_);
  if (choice.train && crew_) gather_ = bind(gather_plan_);
  write_constants();
  for (const checkpoint::Target& t : targets()) targets_.emplace(t.name, t);
}

void Programs::open_groups() {
  if (!crew_) return;
  std::set<Crew::Lane> lanes;
  for (const Planned* p : {&train_plan_, &rerun_plan_, &evaluate_plan_, &gather_plan_})
    for (const program::Stage& s : p->program.stages) {
      const program::OpClass kind = class_of(s.op);
      if (kind == program::OpClass::Transfer)
        lanes.emplace(s.group, "messages");
      else if (kind == program::OpClass::Collective)
        lanes.emplace(s.group, p->program.lanes[static_cast<size_t>(s.lane)].name);
    }
  crew_->open_groups(lanes, machine_ ? comm::Buffers::Device : comm::Buffers::Host);
}

void Programs::gather_weights() {
  if (gather_) gather_->run();
}

void Programs::require_same_state() const {
  std::map<std::string, int64_t> offsets;
  for (size_t i = 0; i < rerun_plan_.program.values.size(); ++i)
    offsets[rerun_plan_.program.values[i].name] = rerun_plan_.plan.offset[i];
  for (size_t i = 0; i < train_plan_.program.values.size(); ++i) {
    const program::Value& v = train_plan_.program.values[i];
    if (v.life != Life::Persistent) continue;
    const auto other = offsets.find(v.name);
    PLEAT_CHECK(other != offsets.end() && other->second == train_plan_.plan.offset[i],
                "{} lies elsewhere when a step is run again", v.name);
  }
}

void Programs::write_constants() {
  for (size_t i = 0; i < any_->program.values.size(); ++i) {
    const program::Value& v = any_->program.values[i];
    if (any_->plan.offset[i] < 0) continue;
    std::byte* to = arena_->data() + any_->plan.offset[i];
    if (v.name == "rope.inv_freq") {
      const std::vector<double> frequencies = model::rope_frequencies(config_.model);
      std::memcpy(to, frequencies.data(), static_cast<size_t>(program::num_bytes(v)));
    } else if (v.name == "coords") {
      std::memcpy(to, setup_.place.coords.data(), sizeof setup_.place.coords);
    } else {
      continue;
    }
    if (machine_) machine_->write(any_->plan.offset[i], to, program::num_bytes(v));
  }
}

void Programs::initialize() {
  const uint64_t seed = static_cast<uint64_t>(config_.train.seed);
  for (const checkpoint::Target& t : targets()) {
    const int64_t offset = t.bytes.data() - arena_->data(), count = static_cast<int64_t>(t.bytes.size());
    if (machine_ && !comes_from_seed(t.name, table_)) {
      machine_->fill(offset, 0, count);
      continue;
    }
    if (machine_ &&
        draw_on_gpu(t.name, table_, seed, setup_.mesh, setup_.place, t.dtype, *machine_, offset, count))
      continue;
    initialize_state(t.name, table_, seed, setup_.mesh, setup_.place, t.dtype, t.bytes, pool_);
    if (machine_) machine_->write(offset, t.bytes.data(), count);
  }
}

void Programs::push_state() {
  if (!machine_) return;
  for (const checkpoint::Target& t : targets())
    machine_->write(t.bytes.data() - arena_->data(), t.bytes.data(), static_cast<int64_t>(t.bytes.size()));
}

void Programs::pull_state() const {
  if (!machine_) return;
  for (const checkpoint::Target& t : const_cast<Programs*>(this)->targets())
    machine_->read(t.bytes.data() - arena_->data(), t.bytes.data(), static_cast<int64_t>(t.bytes.size()));
}

std::vector<checkpoint::Target> Programs::targets() {
  std::vector<checkpoint::Target> out;
  for (size_t i = 0; i < any_->program.values.size(); ++i) {
    const program::Value& v = any_->program.values[i];
    // Constants follow from the config; a view would say its value's numbers twice.
    if (v.life != Life::Persistent || v.owner == Owner::Inputs || v.view_of != program::kNoValue) continue;
    out.push_back({v.name,
                   v.dtype,
                   v.shape,
                   {arena_->data() + any_->plan.offset[i], static_cast<size_t>(program::num_bytes(v))}});
  }
  return out;
}

void Programs::read(const std::string& name, std::span<std::byte> to) const {
  const checkpoint::Target& t = target(name);
  PLEAT_CHECK(to.size() == t.bytes.size(), "'{}' has {} bytes, room for {}", name, t.bytes.size(), to.size());
  if (machine_)
    machine_->read(t.bytes.data() - arena_->data(), to.data(), static_cast<int64_t>(to.size()));
  else
    std::memcpy(to.data(), t.bytes.data(), to.size());
}

const checkpoint::Target& Programs::target(const std::string& name) const {
  const auto found = targets_.find(name);
  PLEAT_CHECK(found != targets_.end(), "this rank has no '{}'", name);
  return found->second;
}

std::vector<checkpoint::TensorRef> Programs::tensors() const {
  pull_state();
  std::vector<checkpoint::TensorRef> out;
  for (checkpoint::Target& t : const_cast<Programs*>(this)->targets())
    out.push_back({std::move(t.name), t.dtype, std::move(t.shape), t.bytes});
  return out;
}

}  // namespace pleat::train
