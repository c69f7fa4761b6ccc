#include "train/programs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/hash.h"
#include "base/rng.h"
#include "model/rope.h"
#include "interpret/check/check.h"
#include "schedule/pass/pass.h"

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

// A stream of its own for every parameter name, so that adding a parameter leaves all others as they were.
uint64_t seed_of(uint64_t seed, const std::string& name) {
  const base::Sha256Digest digest = base::sha256(name);
  uint64_t mix = 0;
  std::memcpy(&mix, digest.data(), sizeof(mix));
  return seed ^ mix;
}

template <class T>
void initialize_parameter(const model::Parameter& p, uint64_t seed, T* out, device::Pool& pool) {
  const int64_t n = model::num_elements(p);
  if (p.init != model::Init::Normal) {
    std::fill(out, out + n, p.init == model::Init::Ones ? T(1) : T(0));
    return;
  }
  const base::RandomStream stream(seed_of(seed, p.name), base::RandomUse::Init, 0, 0);
  constexpr int64_t kTile = 16384;
  pool.for_each_tile((n + kTile - 1) / kTile, [&](int64_t tile) {
    for (int64_t i = tile * kTile; i < std::min(n, (tile + 1) * kTile); ++i)
      out[i] = static_cast<T>(p.init_std * stream.normal(static_cast<uint64_t>(i)));
  });
}

// Drops stages nothing that lasts depends on, then the values nothing uses.
void drop_unused(program::Program& p) {
  std::vector<bool> live(p.values.size());
  for (size_t i = 0; i < live.size(); ++i) live[i] = p.values[i].life != Life::Step;
  std::vector<program::Stage> kept;
  for (auto stage = p.stages.rbegin(); stage != p.stages.rend(); ++stage) {
    bool needed = false;
    for (const program::Use& u : stage->uses)
      needed |= u.value != program::kNoValue && u.access != program::Access::Read && live[size_t(program::root_of(p, u.value))];
    if (!needed) continue;
    for (const program::Use& u : stage->uses)
      if (u.value != program::kNoValue) live[size_t(program::root_of(p, u.value))] = live[size_t(u.value)] = true;
    kept.push_back(std::move(*stage));
  }
  p.stages.assign(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));
  std::vector<program::ValueId> renamed(p.values.size(), program::kNoValue);
  std::vector<program::Value> values;
  for (size_t i = 0; i < p.values.size(); ++i) {
    if (!live[i]) continue;
    renamed[i] = static_cast<program::ValueId>(values.size());
    values.push_back(std::move(p.values[i]));
    program::ValueId& root = values.back().view_of;
    if (root != program::kNoValue) root = renamed[size_t(root)];
  }
  p.values = std::move(values);
  for (program::Stage& stage : p.stages)
    for (program::Use& u : stage.uses)
      if (u.value != program::kNoValue) u.value = renamed[size_t(u.value)];
}

}  // namespace

bool is_frozen(const config::Config& config, const model::Parameter& p) {
  const std::vector<std::string>& names = config.optimizer.freeze;
  return std::find(names.begin(), names.end(), model::name_of(p.parameter_class)) != names.end();
}

program::Program without_frozen(program::Program p, const config::Config& config, const std::vector<model::Parameter>& table) {
  using program::Op;
  bool any_left = false, router = false;
  for (const std::string& name : config.optimizer.freeze) {
    router |= name == "router";
    if (std::none_of(table.begin(), table.end(), [&](const model::Parameter& t) { return t.tied_to.empty() && name == model::name_of(t.parameter_class); }))
      base::fail("optimizer.freeze names \"{}\", which matches no parameter of this model; remove it", name);
  }
  for (const model::Parameter& t : table) any_left |= t.tied_to.empty() && !is_frozen(config, t);
  if (!any_left) base::fail("optimizer.freeze names every class of this model: nothing is left to train");
  std::erase_if(p.stages, [&](const program::Stage& s) {
    if (s.op == Op::bias_update) return router;
    return (s.op == Op::adamw || s.op == Op::grad_norm) && is_frozen(config, table[size_t(s.part)]);
  });
  // The norm is summed over the parts that are left, side by side.
  int64_t num_parts = 0;
  program::ValueId parts = program::kNoValue;
  for (const program::Stage& s : p.stages) {
    if (s.op != Op::grad_norm) continue;
    program::Value& view = p.values[size_t(s.uses.back().value)];
    view.offset = num_parts * static_cast<int64_t>(sizeof(double));
    num_parts += view.shape[0];
    parts = view.view_of;
  }
  PLEAT_CHECK(parts != program::kNoValue, "the parts of the gradient norm lie in one value");
  p.values[size_t(parts)].shape = {num_parts};
  drop_unused(p);
  return p;
}

Planned plan_training_step(const config::Config& config, const std::vector<model::Parameter>& table, const ProgramChoice& choice) {
  program::Program program = schedule::apply_passes(schedule::build_training_step(config, table, choice.build), config, choice.disabled_passes);
  if (!config.optimizer.freeze.empty()) program = without_frozen(std::move(program), config, table);
  return checked(std::move(program));
}

Programs::Programs(const config::Config& config, const ProgramChoice& choice)
    : config_(config), table_(model::make_parameters(config)), pool_(static_cast<int>(config.device.threads)) {
  int64_t bytes = 0;
  if (choice.train) train_plan_ = plan_training_step(config_, table_, choice), any_ = &train_plan_, bytes = train_plan_.plan.arena_bytes;
  if (choice.evaluate) {
    evaluate_plan_ = checked(schedule::build_evaluation(config_, table_, choice.build));
    any_ = &evaluate_plan_, bytes = std::max(bytes, evaluate_plan_.plan.arena_bytes);
  }
  if (choice.logits) {
    logits_plan_ = checked(schedule::build_logits(config_, table_));
    any_ = &logits_plan_, bytes = std::max(bytes, logits_plan_.plan.arena_bytes);
  }
  PLEAT_CHECK(any_, "a run needs at least one program");
  arena_ = std::make_unique<device::Arena>(bytes);
  arena_->fill_pattern();
  const auto bind = [&](const Planned& p) {
    return std::make_unique<interpret::Executor>(p.program, p.plan, arena_->data(), pool_);
  };
  if (choice.train) train_ = bind(train_plan_);
  if (choice.evaluate) evaluate_ = bind(evaluate_plan_);
  if (choice.logits) logits_ = bind(logits_plan_);
  write_constants();
}

void Programs::write_constants() {
  for (size_t i = 0; i < any_->program.values.size(); ++i) {
    const program::Value& v = any_->program.values[i];
    if (v.name != "rope.inv_freq") continue;
    const std::vector<double> frequencies = model::rope_frequencies(config_.model);
    std::memcpy(arena_->data() + any_->plan.offset[i], frequencies.data(), static_cast<size_t>(program::num_bytes(v)));
  }
}

void Programs::initialize() {
  const uint64_t seed = static_cast<uint64_t>(config_.train.seed);
  for (const checkpoint::Target& t : targets()) {
    const int p = model::find_parameter(table_, t.name);
    if (p < 0) {
      std::memset(t.bytes.data(), 0, t.bytes.size());
    } else if (t.dtype == tensor::Dtype::F64) {
      initialize_parameter(table_[size_t(p)], seed, reinterpret_cast<double*>(t.bytes.data()), pool_);
    } else {
      initialize_parameter(table_[size_t(p)], seed, reinterpret_cast<float*>(t.bytes.data()), pool_);
    }
  }
}

std::vector<checkpoint::Target> Programs::targets() {
  std::vector<checkpoint::Target> out;
  for (size_t i = 0; i < any_->program.values.size(); ++i) {
    const program::Value& v = any_->program.values[i];
    // Constants follow from the config; a view would say its value's numbers twice.
    if (v.life != Life::Persistent || v.owner == Owner::Inputs || v.view_of != program::kNoValue) continue;
    out.push_back({v.name, v.dtype, v.shape, {arena_->data() + any_->plan.offset[i], static_cast<size_t>(program::num_bytes(v))}});
  }
  return out;
}

std::vector<checkpoint::TensorRef> Programs::tensors() const {
  std::vector<checkpoint::TensorRef> out;
  for (checkpoint::Target& t : const_cast<Programs*>(this)->targets())
    out.push_back({std::move(t.name), t.dtype, std::move(t.shape), t.bytes});
  return out;
}

}  // namespace pleat::train
