#include "train/programs.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

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

// What an owner of a share of a tensor holds of the tensor's runs, counted from the start of its share.
std::vector<model::Run> owned_runs(const std::vector<model::Run>& runs, const model::Ownership& own,
                                   const RankPlace& place) {
  if (own.num_owners == 1) return runs;
  const int64_t begin = own.share * place.at(own.inside), end = begin + own.share;
  std::vector<model::Run> out;
  for (const model::Run& r : runs) {
    const int64_t from = std::max(r.local_begin, begin), to = std::min(r.local_begin + r.count, end);
    if (from < to) out.push_back({r.logical_begin + from - r.local_begin, from - begin, to - from});
  }
  return out;
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
  if (gpu && crew_)
    base::fail("several ranks run on the CPU only so far: device.kind = \"cuda\" is for one rank");
  if (config.model.dtype == "bfloat16" && !gpu)
    base::fail(
        "model.dtype = \"bfloat16\" can be planned, explained and simulated; the CPU runs \"float32\" and "
        "\"float64\"");
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
  const auto bind = [&](const Planned& p) -> std::unique_ptr<interpret::Executor> {
    if (machine_)
      return std::make_unique<interpret::CudaExecutor>(p.program, p.plan, *machine_,
                                                       interpret::CudaOptions{.graph = config_.device.graph});
    return std::make_unique<interpret::Executor>(
        p.program, p.plan, arena_->data(), pool_,
        crew_ ? [this](program::Group group, const std::string& lane) { return crew_->group(group, lane); }
              : interpret::FindGroup{});
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
  crew_->open_groups(lanes);
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
  constexpr std::string_view kRest = model::kRest;
  for (const checkpoint::Target& t : targets()) {
    const bool rest = t.name.ends_with(kRest);
    const int p =
        model::find_parameter(table_, rest ? t.name.substr(0, t.name.size() - kRest.size()) : t.name);
    const int64_t at = t.bytes.data() - arena_->data(), count = static_cast<int64_t>(t.bytes.size());
    if (machine_ && p < 0) {
      machine_->fill(at, 0, count);
      continue;
    }
    std::memset(t.bytes.data(), 0, t.bytes.size());  // padding stays zero
    if (p >= 0) {
      const model::Parameter& parameter = table_[size_t(p)];
      std::vector<model::Run> runs = model::local_runs(parameter, setup_.mesh, setup_.place.weights());
      if (rest) runs = owned_runs(runs, model::ownership(parameter, setup_.mesh), setup_.place);
      initialize_slice(parameter, seed, runs, t.dtype, t.bytes.data(), pool_);
    }
    if (machine_) {
      machine_->write(at, t.bytes.data(), count);
      arena_->release(at, count);  // a large model's copy would not fit beside it
    }
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
