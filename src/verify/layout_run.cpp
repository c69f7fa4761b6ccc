#include "verify/layout_run.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "comm/local/local_world.h"
#include "device/cpu/arena.h"
#include "interpret/check/check.h"
#include "interpret/plan/plan.h"
#include "interpret/run/bound.h"
#include "model/overflow.h"
#include "model/rope.h"
#include "model/shard.h"
#include "schedule/pass/freeze.h"
#include "schedule/pass/pass.h"
#include "tensor/bf16.h"
#include "train/initialize.h"
#include "verify/batch.h"

namespace pleat::verify {
namespace {

using program::Group;

double number(const void* data, tensor::Dtype dtype, int64_t i) {
  switch (dtype) {
    case tensor::Dtype::F64:
      return static_cast<const double*>(data)[i];
    case tensor::Dtype::BF16:
      return static_cast<double>(tensor::widened(static_cast<const uint16_t*>(data)[i]));
    default:
      return static_cast<double>(static_cast<const float*>(data)[i]);
  }
}

// Collects what the ranks hold into logical tensors; an element two ranks hold must be the same.
class Assembly {
 public:
  explicit Assembly(const std::vector<model::Parameter>& table) : table_(table) {}

  // Elements [begin, begin + count) of the rank's local tensor.
  void add(std::map<std::string, Tensor>& into, const model::Parameter& p,
           const std::vector<model::Run>& runs, const void* data, tensor::Dtype dtype, int64_t begin,
           int64_t count) {
    std::lock_guard lock(mutex_);
    Tensor& to = into[p.name];
    if (to.empty()) to.assign(static_cast<size_t>(model::num_elements(p)), kMissing);
    for (const model::Run& run : runs)
      for (int64_t i = std::max(run.local_begin, begin);
           i < std::min(run.local_begin + run.count, begin + count); ++i) {
        double& slot = to[static_cast<size_t>(run.logical_begin + i - run.local_begin)];
        const double value = number(data, dtype, i - begin);
        if (slot != kMissing && !same(slot, value))
          base::fail("{}: element {} is {} on one rank and {} on another", p.name,
                     run.logical_begin + i - run.local_begin, slot, value);
        slot = value;
      }
  }

  void require_whole(const config::Config& config, const std::map<std::string, Tensor>& tensors,
                     const char* what, bool with_frozen) const {
    for (const model::Parameter& p : table_) {
      if (!p.tied_to.empty() || (!with_frozen && schedule::is_frozen(config, p))) continue;
      const auto it = tensors.find(p.name);
      if (it == tensors.end()) base::fail("no rank holds the {} of {}", what, p.name);
      for (size_t i = 0; i < it->second.size(); ++i)
        if (it->second[i] == kMissing)
          base::fail("no rank holds element {} of the {} of {}", i, what, p.name);
    }
  }

 private:
  static constexpr double kMissing = -1.2345678901234567e308;
  static bool same(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }
  const std::vector<model::Parameter>& table_;
  std::mutex mutex_;
};

class Rank {
 public:
  Rank(const config::Config& config, const std::vector<model::Parameter>& table, const model::Mesh& mesh,
       const model::Role& role, comm::LocalWorld& world, int rank, const RunOptions& options)
      : config_(config),
        table_(table),
        mesh_(mesh),
        role_(role),
        place_(rank_place(mesh, rank)),
        options_(options),
        pool_(1) {
    plan(usual_, config);
    const bool may_rerun = find("overflow") && config.moe.overflow == "rerun";
    if (may_rerun) {
      rerun_config_ = model::rerun_config(config);
      plan(rerun_, rerun_config_);
    }
    gather_.program = schedule::build_gather(config, table_, {options_.routing, mesh_, role_});
    gather_.plan = interpret::plan(gather_.program);
    const int64_t bytes = std::max(
        {usual_.plan.arena_bytes, may_rerun ? rerun_.plan.arena_bytes : 0, gather_.plan.arena_bytes});
    if (config.device.kind == "cuda") {
      machine_ = std::make_unique<interpret::CudaMachine>(bytes);
      machine_->fill(0, 0xFF, bytes);
    }
    arena_ = std::make_unique<device::Arena>(machine_ ? usual_.plan.persistent_bytes : bytes);
    arena_->fill_pattern();
    bind(usual_, world);
    if (may_rerun) bind(rerun_, world), require_same_state(rerun_);
    bind(gather_, world), require_same_state(gather_);
    initialize();
  }

  void step(const Batch& batch, int64_t step, const std::vector<int32_t>& piece) {
    piece_ = piece;
    now_ = &usual_;
    run(batch, step);
    if (!find("overflow")) return;
    const std::string fault = model::overflow_fault(
        {static_cast<const int64_t*>(data("overflow")), size_t(config::num_all_layers(config_))}, config_,
        mesh_);
    if (fault.empty()) return;
    // Nobody wrote a weight: the step never was.
    if (*static_cast<const int32_t*>(data("commit")) != 0)
      base::fail_with(base::ExitCode::Internal, "step {} was committed: {}", step, fault);
    if (config_.moe.overflow != "rerun") base::fail("step {}: {}", step, fault);
    now_ = &rerun_;
    run(batch, step);
  }

  // A rank that goes its own way, as after a reduction that forgot it.
  void drift() {
    PLEAT_CHECK(config_.model.dtype == "float64", "ranks drift in float64 only");
    for (const model::Parameter& p : table_)
      if (p.parameter_class == model::ParameterClass::Router && place_.rank == mesh_.world() - 1 &&
          find(p.name))
        *static_cast<double*>(data(p.name)) += 1e-3;
  }

  // Weights as a forward would see them, from their owners. Results of the step are gone behind this.
  void gather_weights() {
    gather_.executor->run();
    pull_state();
  }

  void collect_weights(StepResults& out, Assembly& assembly) {
    for (const model::Parameter& p : table_)
      if (p.tied_to.empty() && find(p.name)) add(out.weights, assembly, p, p.name, false);
  }

  void collect(StepResults& out, Assembly& assembly, std::mutex& mutex) {
    for (size_t i = 0; i < table_.size(); ++i) {
      const model::Parameter& p = table_[i];
      if (!p.tied_to.empty() || !find(p.name)) continue;
      const bool shared = model::ownership(p, mesh_).summed();
      std::string name = p.name + (shared ? ".grad_share" : ".grad");
      if (!find(name)) continue;  // the tied weight where its embedding is not
      add(out.gradients, assembly, p, name, shared);
    }
    std::lock_guard lock(mutex);
    const double* loss = static_cast<const double*>(data("loss"));
    const double* scale = static_cast<const double*>(data("grad_scale"));
    out.committed = *static_cast<const int32_t*>(data("commit")) != 0;
    out.rerun = now_ == &rerun_;
    out.loss = loss[0] / std::max(loss[1], 1.0);
    out.norm = scale[0];
    out.clip = scale[1];
    for (int layer = 0; layer < config::num_all_layers(config_); ++layer) {
      collect_rows(out, layer);
      if (!find(fmt::format("L{}.load", layer)) || options_.gradient) continue;
      const auto data = [&](const char* what) {
        return now_->executor->data(fmt::format("L{}.{}", layer, what));
      };
      LayerResults& r = out.layers[layer];
      const int64_t* load = static_cast<const int64_t*>(data("load"));
      r.load.assign(load, load + config_.moe.num_experts);
      r.dropped = *static_cast<const int64_t*>(data("dropped"));
      if (find(fmt::format("L{}.aux_losses", layer))) {
        const double* losses = static_cast<const double*>(data("aux_losses"));
        r.losses.assign(losses, losses + 4);
      }
    }
  }

  void collect(LayoutRun& out, Assembly& assembly) {
    gather_weights();
    for (const model::Parameter& p : table_) {
      if (!p.tied_to.empty() || !find(p.name)) continue;
      add(out.weights, assembly, p, p.name, false);
      add(out.moments1, assembly, p, p.name + ".moment1", true);
      add(out.moments2, assembly, p, p.name + ".moment2", true);
    }
  }

 private:
  struct Instance {
    program::Program program;
    interpret::Plan plan;
    std::unique_ptr<interpret::Executor> executor;
  };

  void plan(Instance& to, const config::Config& config) {
    to.program = schedule::apply_passes(
        schedule::build_training_step(config, table_, {options_.routing, mesh_, role_}), config, {});
    const auto tapped = [&](const std::string& name) {
      return std::any_of(options_.taps.begin(), options_.taps.end(),
                         [&](const std::string& tap) { return name.ends_with("." + tap); });
    };
    to.program = interpret::with_results(std::move(to.program), [&](const program::Value& v) {
      return v.name.ends_with(".grad") || v.name.ends_with(".grad_share") || tapped(v.name);
    });
    plant(to.program, options_.fault);
    if (options_.gradient) leave_update(to.program);
    interpret::require_ok(interpret::check(to.program), "program");
    to.plan = interpret::plan(to.program);
    interpret::require_ok(interpret::check_plan(to.program, to.plan), "plan");
  }

  void bind(Instance& to, comm::LocalWorld& world) {
    const interpret::FindGroup groups = [&](Group group, const std::string& lane) {
      auto& slot = groups_[{group, lane}];
      if (!slot) {
        const std::vector<int>& members = place_.members[size_t(group)];
        slot = world.group(fmt::format("{}@{}:{}", name_of(group), lane, members.front()), members,
                           place_.rank, machine_ ? comm::Buffers::Device : comm::Buffers::Host);
      }
      return slot.get();
    };
    if (machine_)
      to.executor = std::make_unique<interpret::CudaExecutor>(
          to.program, to.plan, *machine_, interpret::CudaOptions{.graph = config_.device.graph}, groups);
    else
      to.executor = std::make_unique<interpret::Executor>(to.program, to.plan, arena_->data(), pool_, groups);
  }

  void require_same_state(const Instance& other) const {
    for (size_t i = 0; i < usual_.program.values.size(); ++i) {
      const program::Value& v = usual_.program.values[i];
      if (v.life != program::Life::Persistent || v.view_of != program::kNoValue) continue;
      PLEAT_CHECK(usual_.plan.offset[i] == other.plan.offset[size_t(other.executor->find(v.name))],
                  "{} lies elsewhere in another program", v.name);
    }
  }

  void run(const Batch& batch, int64_t step) {
    write_batch(*now_->executor, config_, mesh_, place_, batch, step);
    for (int64_t i = 0; i < config_.train.num_microbatches && mesh_.pieces > 1; ++i)
      std::memcpy(data(fmt::format("mb{}.piece", i)), piece_.data(), piece_.size() * sizeof(int32_t));
    each_routing([&](const std::string& name, int32_t* to, int64_t row, int64_t t, int64_t k) {
      if (options_.routing == model::RoutingUse::Replay)
        std::copy_n(options_.replay.at(name).data() + row * k, k, to + t * k);
    });
    if (options_.gradient)
      for (const model::Parameter& p : table_) {
        if (!find(p.name + ".grad")) continue;
        const int64_t n =
            program::num_elements(now_->program.values[size_t(now_->executor->find(p.name + ".grad"))]);
        double* to = static_cast<double*>(data(p.name + ".grad"));
        for (int64_t i = 0; i < n; ++i) to[i] = options_.gradient(p, place_, i);
      }
    interpret::RunOptions run;
    run.lanes_as_threads = mesh_.has_link_lanes();
    run.lanes_as_threads |= options_.delay_seed != 0;
    if (options_.delay_seed) run.delay_seed = options_.delay_seed + static_cast<uint64_t>(place_.rank);
    run.poison = options_.poison;
    now_->executor->run(run);
    pull_state();
  }

  // On a GPU `arena_` is the host's copy of the state.
  void pull_state() {
    if (machine_) machine_->read(0, arena_->data(), usual_.plan.persistent_bytes);
  }

  // Calls fn(name, data, natural row, own row, width) for every row of every layer's stored choices.
  template <class Fn>
  void each_routing(Fn fn) {
    if (options_.routing == model::RoutingUse::Choose) return;
    each_row("routing", [&](const std::string& name, ValueRows v, int64_t row, int64_t t) {
      fn(name, static_cast<int32_t*>(v.data), row, t, v.width);
    });
  }

  struct ValueRows {
    void* data;
    int64_t width;
    tensor::Dtype dtype;
  };

  // fn("mb0.L1", value, natural row, own row) for the value `what` of every microbatch and layer here.
  template <class Fn>
  void each_row(const std::string& what, Fn fn) {
    const std::vector<int32_t> rows = train::context_rows(config_, mesh_, place_.at(Group::Context));
    const int64_t own = static_cast<int64_t>(rows.size()) / mesh_.tp, first = own * place_.at(Group::Tensor);
    for (int64_t mb = 0; mb < config_.train.num_microbatches / mesh_.dp; ++mb)
      for (int64_t layer = 0; layer < config::num_all_layers(config_); ++layer) {
        const std::string name = fmt::format("mb{}.L{}.{}", mb, layer, what);
        if (!find(name)) continue;
        const program::Value& v = now_->program.values[size_t(now_->executor->find(name))];
        const ValueRows value{data(name), program::num_elements(v) / v.shape[0], v.dtype};
        PLEAT_CHECK(v.shape[0] == own, "{} has {} rows, this rank {}", name, v.shape[0], own);
        for (int64_t t = 0; t < own; ++t)
          fn(fmt::format("mb{}.L{}", mb * mesh_.dp + place_.at(Group::Data), layer), value,
             int64_t{rows[size_t(first + t)]}, t);
      }
  }

  void collect_rows(StepResults& out, int layer) {
    if (layer != 0) return;
    const size_t all = static_cast<size_t>(config_.train.micro_batch * config_.train.seq_len);
    if (options_.routing == model::RoutingUse::Record)
      each_row("routing", [&](const std::string& name, ValueRows v, int64_t row, int64_t t) {
        auto& to = out.routing[name];
        to.resize(all * static_cast<size_t>(v.width));
        std::copy_n(static_cast<const int32_t*>(v.data) + t * v.width, v.width, to.data() + row * v.width);
      });
    for (const std::string& tap : options_.taps)
      each_row(tap, [&](const std::string& name, ValueRows v, int64_t row, int64_t t) {
        Tensor& to = out.taps[name + "." + tap];
        to.resize(all * static_cast<size_t>(v.width));
        for (int64_t i = 0; i < v.width; ++i)
          to[static_cast<size_t>(row * v.width + i)] = number(v.data, v.dtype, t * v.width + i);
      });
  }

  // Only what follows the last microbatch, with gradients given.
  static void leave_update(program::Program& p) {
    using program::Op;
    std::erase_if(p.stages, [](const program::Stage& s) {
      const bool sums = s.op == Op::grad_pack || s.op == Op::grad_reduce || s.op == Op::share_reduce;
      return (s.microbatch >= 0 && !sums) || s.op == Op::load_reduce || s.op == Op::bias_update ||
             s.op == Op::loss_reduce || s.op == Op::count_reduce;
    });
    program::Stage zero;
    zero.op = Op::zero;
    zero.phase = program::Phase::Forward;
    zero.part = 3;
    for (size_t i = 0; i < p.values.size(); ++i) {
      if (p.values[i].name.ends_with(".grad")) p.values[i].life = program::Life::Input;
      if (p.values[i].name == "loss") zero.uses = {program::w(static_cast<program::ValueId>(i))};
    }
    zero.attrs = p.intern({});
    p.stages.insert(p.stages.begin(), zero);
    std::vector<char> used(p.values.size(), 0);
    for (const program::Stage& s : p.stages)
      for (const program::Use& use : s.uses)
        if (use.value != program::kNoValue) used[size_t(program::root_of(p, use.value))] = 1;
    for (size_t i = 0; i < p.values.size(); ++i)
      if (!used[i] && p.values[i].life == program::Life::Result) p.values[i].life = program::Life::Step;
  }

  void* data(const std::string& name) const {
    const program::ValueId id = now_->executor->find(name);
    if (machine_ && now_->program.values[size_t(id)].life == program::Life::Persistent)
      return arena_->data() + now_->plan.offset[size_t(id)];
    return now_->executor->data(id);
  }

  bool find(const std::string& name) const {
    for (const program::Value& v : now_->program.values)
      if (v.name == name) return true;
    return false;
  }

  void add(std::map<std::string, Tensor>& into, Assembly& assembly, const model::Parameter& p,
           const std::string& name, bool share) {
    const auto runs = model::local_runs(p, mesh_, place_.weights());
    const model::Ownership own = model::ownership(p, mesh_);
    const int64_t begin = share ? std::min(own.share * place_.at(own.inside), own.elements) : 0;
    const int64_t count = share ? std::min(own.elements - begin, own.share) : own.elements;
    const program::Value& v = now_->program.values[size_t(now_->executor->find(name))];
    assembly.add(into, p, runs, data(name), v.dtype, begin, count);
  }

  void initialize() {
    for (size_t i = 0; i < usual_.program.values.size(); ++i) {
      const program::Value& v = usual_.program.values[i];
      if (v.life != program::Life::Persistent || v.view_of != program::kNoValue || usual_.plan.offset[i] < 0)
        continue;
      std::byte* to = arena_->data() + usual_.plan.offset[i];
      train::initialize_state(v.name, table_, static_cast<uint64_t>(config_.train.seed), mesh_, place_,
                              v.dtype, {to, static_cast<size_t>(program::num_bytes(v))}, pool_);
      const int p = model::find_parameter(table_, v.name);
      if (p >= 0) {
        if (options_.weight) set_weights(table_[size_t(p)], v.dtype, to);
      } else if (v.name == "rope.inv_freq") {
        const auto f = model::rope_frequencies(config_.model);
        std::memcpy(to, f.data(), f.size() * sizeof(double));
      } else if (v.name == "coords") {
        std::memcpy(to, place_.coords.data(), sizeof place_.coords);
      }
    }
    if (machine_) machine_->write(0, arena_->data(), usual_.plan.persistent_bytes);
  }

  void set_weights(const model::Parameter& p, tensor::Dtype dtype, std::byte* to) const {
    PLEAT_CHECK(dtype != tensor::Dtype::BF16, "{}: initial weights are given in a wide type", p.name);
    for (const model::Run& run : model::local_runs(p, mesh_, place_.weights()))
      for (int64_t i = 0; i < run.count; ++i) {
        const int64_t at = run.local_begin + i;
        const double value = options_.weight(p, run.logical_begin + i, number(to, dtype, at));
        if (dtype == tensor::Dtype::F64)
          reinterpret_cast<double*>(to)[at] = value;
        else
          reinterpret_cast<float*>(to)[at] = static_cast<float>(value);
      }
  }

  // The mistakes layouts are made of.
  void plant(program::Program& program, Fault fault) const {
    if (fault == Fault::None) return;
    if (fault == Fault::ScaleExpertGradients) {
      scale_expert_gradients(program);
      return;
    }
    for (size_t i = program.stages.size(); i-- > 0;) {
      program::Stage& s = program.stages[i];
      if (fault == Fault::SkipNorm && s.op == program::Op::grad_norm && place_.rank == mesh_.world() - 1) {
        program.stages.erase(program.stages.begin() + static_cast<std::ptrdiff_t>(i));
        return;
      }
      if (fault == Fault::DropReduction && s.op == program::Op::grad_reduce) {
        // What this rank had to add to the last bucket, the embedding's, is forgotten.
        if (place_.rank != mesh_.world() - 1) return;
        program::Stage zero;
        zero.op = program::Op::zero;
        zero.phase = program::Phase::BackwardWeight;
        zero.part = static_cast<int>(table_.size());
        zero.uses = {program::w(s.uses[0].value)};
        program.stages.insert(program.stages.begin() + static_cast<std::ptrdiff_t>(i), zero);
        return;
      }
    }
  }

  // Each expert gradient doubled as often as makes the factor ep.
  void scale_expert_gradients(program::Program& program) const {
    int part = static_cast<int>(table_.size());
    for (size_t i = 0; i < program.values.size(); ++i) {
      const std::string& name = program.values[i].name;
      if (name.find(".experts.") == std::string::npos || !name.ends_with(".grad")) continue;
      const program::ValueId id = static_cast<program::ValueId>(i);
      std::vector<program::Stage> stages;
      for (int64_t factor = 1; factor < mesh_.ep; factor *= 2) {
        program::Stage s;
        s.op = program::Op::tie_grad;
        s.phase = program::Phase::BackwardWeight;
        s.part = part++;
        s.uses = {program::r(id), program::u(id)};
        stages.push_back(s);
      }
      // Before the gradient is summed or, with no replica, used.
      const auto complete =
          std::find_if(program.stages.begin(), program.stages.end(), [&](const program::Stage& s) {
            const bool takes = s.op == program::Op::grad_pack || s.op == program::Op::grad_reduce ||
                               s.op == program::Op::grad_norm;
            return takes && std::any_of(s.uses.begin(), s.uses.end(),
                                        [&](const program::Use& use) { return use.value == id; });
          });
      const auto at = static_cast<program::StageId>(complete - program.stages.begin());
      for (program::Stage& s : program.stages)
        if (s.after >= at) s.after += static_cast<program::StageId>(stages.size());
      program.stages.insert(complete, stages.begin(), stages.end());
    }
  }

  const config::Config& config_;
  std::vector<int32_t> piece_;
  const std::vector<model::Parameter>& table_;
  model::Mesh mesh_;
  model::Role role_;
  RankPlace place_;
  const RunOptions& options_;
  device::Pool pool_;
  config::Config rerun_config_;
  std::unique_ptr<interpret::CudaMachine> machine_;  // on a GPU
  Instance usual_, rerun_, gather_;
  Instance* now_ = &usual_;
  std::unique_ptr<device::Arena> arena_;  // everything; on a GPU the host's copy of the state
  std::map<std::pair<Group, std::string>, std::unique_ptr<comm::Communicator>> groups_;
};

}  // namespace

LayoutRun run_layout(const config::Config& asked, const model::Mesh& mesh,
                     const std::vector<model::Role>& roles, const RunOptions& options) {
  config::Config config = asked;
  config.parallel = {};  // the mesh says it
  const std::vector<model::Parameter> table = model::make_parameters(config);
  LayoutRun out;
  out.steps.resize(static_cast<size_t>(options.num_steps));
  std::vector<Batch> batches;
  for (int64_t s = 1; s <= options.num_steps; ++s)
    batches.push_back(options.batches.empty() ? random_batch(config, options.seed, s)
                                              : options.batches.at(static_cast<size_t>(s - 1)));
  const std::vector<int32_t> piece = pieces_of(config, options.pieces_of);
  Assembly assembly(table);
  std::mutex mutex;
  comm::Options comm;
  comm.check = true;
  comm.timeout_seconds = 60;
  comm::LocalWorld world(static_cast<int>(mesh.world()), comm);
  comm::run_ranks(world, [&](int rank) {
    const int64_t stage = rank_place(mesh, rank).at(Group::Pipeline);
    const model::Role role =
        roles.empty() ? model::whole_model(config.model.num_layers) : roles[static_cast<size_t>(stage)];
    Rank r(config, table, mesh, role, world, rank, options);
    for (int64_t s = 1; s <= options.num_steps; ++s) {
      r.step(batches[static_cast<size_t>(s - 1)], s, piece);
      StepResults& results = out.steps[static_cast<size_t>(s - 1)];
      r.collect(results, assembly, mutex);
      if (options.weights_each_step) r.gather_weights();
      if (options.fault == Fault::Drift) r.drift();
      if (options.weights_each_step) r.collect_weights(results, assembly);
    }
    r.collect(out, assembly);
  });
  for (const StepResults& s : out.steps) assembly.require_whole(config, s.gradients, "gradient", false);
  assembly.require_whole(config, out.weights, "weight", true);
  return out;
}

}  // namespace pleat::verify
