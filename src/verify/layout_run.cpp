#include "verify/layout_run.h"

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
#include "model/rope.h"
#include "model/shard.h"
#include "schedule/pass/freeze.h"
#include "schedule/pass/pass.h"
#include "train/initialize.h"
#include "verify/batch.h"

namespace pleat::verify {
namespace {

using program::Group;

double number(const void* data, tensor::Dtype dtype, int64_t i) {
  return dtype == tensor::Dtype::F64 ? static_cast<const double*>(data)[i]
                                     : static_cast<double>(static_cast<const float*>(data)[i]);
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
  static bool same(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }
  const std::vector<model::Parameter>& table_;
  std::mutex mutex_;
};

class Rank {
 public:
  Rank(const config::Config& config, const std::vector<model::Parameter>& table, const model::Mesh& mesh,
       const model::Role& role, comm::LocalWorld& world, int rank, Fault fault)
      : config_(config), table_(table), mesh_(mesh), role_(role), place_(rank_place(mesh, rank)), pool_(1) {
    program_ = schedule::apply_passes(
        schedule::build_training_step(config, table, {model::RoutingUse::Choose, mesh, role}), config, {});
    program_ = interpret::with_results(std::move(program_), [](const program::Value& v) {
      return v.name.ends_with(".grad") || v.name.ends_with(".grad_share");
    });
    plant(fault);
    interpret::require_ok(interpret::check(program_), "program");
    plan_ = interpret::plan(program_);
    interpret::require_ok(interpret::check_plan(program_, plan_), "plan");
    arena_ = std::make_unique<device::Arena>(plan_.arena_bytes);
    arena_->fill_pattern();
    executor_ = std::make_unique<interpret::Executor>(
        program_, plan_, arena_->data(), pool_, [&](Group group, const std::string& lane) {
          auto& slot = groups_[{group, lane}];
          if (!slot) {
            const std::vector<int>& members = place_.members[size_t(group)];
            slot = world.group(fmt::format("{}@{}:{}", name_of(group), lane, members.front()), members, rank);
          }
          return slot.get();
        });
    initialize();
  }

  void step(const Batch& batch, int64_t step) {
    write_batch(*executor_, config_, mesh_, place_, batch, step);
    interpret::RunOptions run;
    run.lanes_as_threads = mesh_.pp > 1;
    executor_->run(run);
  }

  void collect(StepResults& out, Assembly& assembly, std::mutex& mutex) {
    for (size_t i = 0; i < table_.size(); ++i) {
      const model::Parameter& p = table_[i];
      if (!p.tied_to.empty() || !find(p.name)) continue;
      const bool shared = mesh_.size(model::reduction_group(p)) > 1;
      std::string name = p.name + (shared ? ".grad_share" : ".grad");
      if (!find(name)) continue;  // the tied weight where its embedding is not
      add(out.gradients, assembly, p, name, shared);
    }
    std::lock_guard lock(mutex);
    const double* loss = static_cast<const double*>(executor_->data("loss"));
    const double* scale = static_cast<const double*>(executor_->data("grad_scale"));
    out.loss = loss[0] / std::max(loss[1], 1.0);
    out.norm = scale[0];
    out.clip = scale[1];
    for (int layer = 0; layer < config::num_all_layers(config_); ++layer) {
      if (!find(fmt::format("L{}.load", layer))) continue;
      const auto data = [&](const char* what) { return executor_->data(fmt::format("L{}.{}", layer, what)); };
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
    for (const model::Parameter& p : table_) {
      if (!p.tied_to.empty() || !find(p.name)) continue;
      const bool shared = mesh_.size(model::reduction_group(p)) > 1;
      add(out.weights, assembly, p, p.name, false);
      add(out.moments1, assembly, p, p.name + ".moment1", shared);
      add(out.moments2, assembly, p, p.name + ".moment2", shared);
    }
  }

 private:
  bool find(const std::string& name) const {
    for (const program::Value& v : program_.values)
      if (v.name == name) return true;
    return false;
  }

  void add(std::map<std::string, Tensor>& into, Assembly& assembly, const model::Parameter& p,
           const std::string& name, bool share) {
    const auto runs = model::local_runs(p, mesh_, place_.weights());
    int64_t elements = 0;
    for (const model::Run& r : runs) elements += r.count;
    const Group group = model::reduction_group(p);
    const int64_t shard = (elements + mesh_.size(group) - 1) / mesh_.size(group);
    const int64_t begin = share ? shard * place_.at(group) : 0;
    const int64_t count = share ? std::clamp<int64_t>(elements - begin, 0, shard) : elements;
    const program::Value& v = program_.values[size_t(executor_->find(name))];
    assembly.add(into, p, runs, executor_->data(name), v.dtype, begin, count);
  }

  void initialize() {
    for (size_t i = 0; i < program_.values.size(); ++i) {
      const program::Value& v = program_.values[i];
      if (v.life != program::Life::Persistent || v.view_of != program::kNoValue || plan_.offset[i] < 0)
        continue;
      std::byte* to = arena_->data() + plan_.offset[i];
      const int p = model::find_parameter(table_, v.name);
      if (p >= 0) {
        train::initialize_slice(table_[size_t(p)], static_cast<uint64_t>(config_.train.seed),
                                model::local_runs(table_[size_t(p)], mesh_, place_.weights()), v.dtype, to,
                                pool_);
      } else if (v.name == "rope.inv_freq") {
        const auto f = model::rope_frequencies(config_.model);
        std::memcpy(to, f.data(), f.size() * sizeof(double));
      } else if (v.name == "coords") {
        std::memcpy(to, place_.coords.data(), sizeof place_.coords);
      } else {
        std::memset(to, 0, static_cast<size_t>(program::num_bytes(v)));
      }
    }
  }

  // The mistakes layouts are made of.
  void plant(Fault fault) {
    if (fault == Fault::None) return;
    for (size_t i = 0; i < program_.stages.size(); ++i) {
      program::Stage& s = program_.stages[i];
      if (fault == Fault::SkipNorm && s.op == program::Op::grad_norm && place_.rank == mesh_.world() - 1) {
        program_.stages.erase(program_.stages.begin() + static_cast<std::ptrdiff_t>(i));
        return;
      }
      if (fault == Fault::DropReduction && s.op == program::Op::grad_reduce) {
        // The share of this rank's own gradient alone, as if the others had not been asked.
        s.group = Group::None;
        return;
      }
    }
  }

  const config::Config& config_;
  const std::vector<model::Parameter>& table_;
  model::Mesh mesh_;
  model::Role role_;
  RankPlace place_;
  device::Pool pool_;
  program::Program program_;
  interpret::Plan plan_;
  std::unique_ptr<device::Arena> arena_;
  std::map<std::pair<Group, std::string>, std::unique_ptr<comm::Communicator>> groups_;
  std::unique_ptr<interpret::Executor> executor_;
};

}  // namespace

LayoutRun run_layout(const config::Config& config, const model::Mesh& mesh,
                     const std::vector<model::Role>& roles, const RunOptions& options) {
  const std::vector<model::Parameter> table = model::make_parameters(config);
  LayoutRun out;
  out.steps.resize(static_cast<size_t>(options.num_steps));
  std::vector<Batch> batches;
  for (int64_t s = 1; s <= options.num_steps; ++s) batches.push_back(random_batch(config, options.seed, s));
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
    Rank r(config, table, mesh, role, world, rank, options.fault);
    for (int64_t s = 1; s <= options.num_steps; ++s) {
      r.step(batches[static_cast<size_t>(s - 1)], s);
      r.collect(out.steps[static_cast<size_t>(s - 1)], assembly, mutex);
    }
    r.collect(out, assembly);
  });
  for (const StepResults& s : out.steps) assembly.require_whole(config, s.gradients, "gradient", false);
  assembly.require_whole(config, out.weights, "weight", true);
  return out;
}

}  // namespace pleat::verify
