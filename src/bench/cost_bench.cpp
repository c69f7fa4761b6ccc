#include "bench/cost_bench.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <set>

#include "base/error.h"
#include "bench/cost_variants.h"
#include "bench/crowd.h"
#include "bench/link_times.h"
#include "bench/rank_bench.h"
#include "config/resolve.h"
#include "device/cuda/cuda.h"
#include "report/format.h"
#include "schedule/ranks.h"

namespace pleat::bench {
namespace {

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != line.npos) return line.substr(colon + 2, 100);
  }
  return "unnamed processor";
}

// How long a piece of work is, compared with others: layers that tokens go through.
double weight_of(const config::Config& c, int64_t steps) {
  return double(c.model.num_layers) / double(c.parallel.pp) * double(c.train.num_microbatches) *
         double(c.train.micro_batch * c.train.seq_len) * double(steps);
}

// Says after every piece of work how far it is; time left from the pace of the pieces so far.
class CostPace {
 public:
  explicit CostPace(std::function<void(const std::string&)> note) : note_(std::move(note)) {}

  void expect(double weight) { ++pieces_, left_ += weight; }
  void say(const std::string& line) const {
    if (note_) note_(line);
  }
  void done(double weight, const std::string& what) {
    ++done_, left_ -= weight, weight_done_ += weight;
    const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const std::string left = report::format_duration(spent / weight_done_ * std::max(left_, 0.0));
    say(fmt::format("{}/{} {}{}", done_, pieces_, what,
                    done_ < pieces_ ? fmt::format("; about {} left", left) : ""));
  }

 private:
  size_t pieces_ = 0, done_ = 0;
  double left_ = 0, weight_done_ = 0;
  std::function<void(const std::string&)> note_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class CostBench {
 public:
  CostBench(const config::Config& config, const CostBenchOptions& options)
      : config_(config),
        options_(options),
        on_cpu_(config.device.kind == "cpu"),
        variants_(options.neighbours ? cost_variants(config, options.ranks) : CostVariants{}),
        pace_(options.note) {
    for (int64_t stage = 0; stage < config.parallel.pp; ++stage) pace_.expect(step_weight());
    for (const CostVariant& variant : variants_.fitting) pace_.expect(variant_weight(variant));
    if (on_cpu_ && options.crowd) pace_.expect(crowd_weight());
    if (on_cpu_ && options.links) pace_.expect(kLinksWeight);
  }

  cost::CostFile run() {
    for (int64_t stage = 0; stage < config_.parallel.pp; ++stage) measure_stage(stage);
    for (const std::string& skipped : variants_.skipped) pace_.say("no neighbour " + skipped);
    for (const CostVariant& variant : variants_.fitting) measure_variant(variant);
    if (on_cpu_ && options_.crowd) measure_crowding();
    if (on_cpu_ && options_.links) {
      last().links = measure_links({});
      pace_.done(kLinksWeight, "exchanges between ranks");
    }
    return cost::join(parts_);
  }

 private:
  cost::CostFile& part() {
    parts_.push_back(
        {.machine = machine_, .config = options_.name, .entries = {}, .links = {}, .crowd = {}, .steps = {}});
    return parts_.back();
  }
  cost::CostFile& last() { return parts_.back(); }

  static constexpr double kLinksWeight = 1;  // seconds whatever the model is
  int64_t variant_steps() const { return std::max<int64_t>(3, options_.steps / 3); }
  int64_t crowd_steps() const { return std::max<int64_t>(3, options_.steps); }
  double step_weight() const { return weight_of(config_, RankRun{}.warmup + options_.steps); }
  double variant_weight(const CostVariant& variant) const {
    return weight_of(variant.config, 1 + variant_steps());
  }
  // Two microbatches through every kind of layer, with one thread.
  double crowd_weight() const {
    const double tokens = double(config_.train.micro_batch * config_.train.seq_len);
    return 4 * tokens * double(crowd_steps() + 1) * double(machine_.cores * config_.device.threads);
  }

  void keep(const RankCosts& costs) {
    part().entries = costs.entries;
    for (const cost::CostEntry& e : costs.entries) known_.insert(e.key);
  }

  bool is_known(const program::Program& program) const {
    for (const program::Stage& stage : program.stages)
      if (cost::has_cost_key(stage) && !known_.contains(cost::stage_key(program, stage))) return false;
    return true;
  }

  void measure_stage(int64_t stage) {
    const bool several = config_.parallel.pp > 1;
    const std::string what = several ? fmt::format("pipeline stage {} of {}", stage, config_.parallel.pp)
                                     : std::string("the step");
    if (several && stage == 0) programs_ = schedule::build_ranks(config_, options_.ranks).programs;
    if (several && is_known(programs_[static_cast<size_t>(stage)])) {
      pace_.done(step_weight(), what + ": all of its stages are measured already");
      return;
    }
    const RankCosts costs =
        measure_rank(config_, {.ranks = options_.ranks, .pipeline_rank = stage, .steps = options_.steps});
    keep(costs);
    last().steps.push_back({options_.name, options_.ranks, stage, costs.step_ns, costs.stages_ns});
    pace_.done(step_weight(),
               fmt::format("{}: {}, its {} kinds of stages {}", what,
                           report::format_microseconds(costs.step_ns / 1e3), costs.entries.size(),
                           report::format_microseconds(costs.stages_ns / 1e3)));
  }

  void measure_variant(const CostVariant& variant) {
    try {
      const RankCosts costs =
          measure_rank(variant.config, {.ranks = variant.ranks, .warmup = 1, .steps = variant_steps()});
      keep(costs);
      pace_.done(variant_weight(variant),
                 fmt::format("{}: {}", variant.name, report::format_microseconds(costs.step_ns / 1e3)));
    } catch (const base::Error& e) {
      if (e.code() != base::ExitCode::BadInput) throw;
      pace_.done(variant_weight(variant), fmt::format("no neighbour {}: {}", variant.name, e.what()));
    }
  }

  void measure_crowding() {
    try {
      const config::Config single = short_single(config_);
      last().crowd = measure_crowd(single, machine_.cores, crowd_steps(), [&](int64_t k, double times) {
        pace_.say(fmt::format("{} core{} at work: {:.2f} times as long", k, k == 1 ? "" : "s", times));
      });
      pace_.done(crowd_weight(), "cores at work at once");
    } catch (const base::Error& e) {
      if (e.code() != base::ExitCode::BadInput) throw;
      pace_.done(crowd_weight(), fmt::format("cores at work at once are not measured: {}", e.what()));
    }
  }

  const config::Config& config_;
  const CostBenchOptions& options_;
  const bool on_cpu_;
  const cost::CostMachine machine_ = cost_machine(config_);
  const CostVariants variants_;
  CostPace pace_;
  std::vector<program::Program> programs_;  // of each pipeline stage, where there are several
  std::vector<cost::CostFile> parts_;
  std::set<cost::StageKey> known_;
};

}  // namespace

std::vector<KindTime> kind_times(const config::Config& config, int64_t ranks, const cost::CostFile& file) {
  const cost::CostTable table(file.entries);
  std::map<std::string, KindTime> sums;
  for (const program::Program& program : schedule::build_ranks(config, ranks).programs)
    for (const program::Stage& stage : program.stages) {
      if (!cost::has_cost_key(stage)) continue;
      const cost::CostEntry* entry = table.find(cost::stage_key(program, stage));
      if (!entry) base::fail("costs of '{}' have none of {}", file.config, program::stage_name(stage));
      const std::string name =
          fmt::format("{} {}", program::name_of(program::kernel_of(stage.op)), program::name_of(stage.phase));
      KindTime& sum = sums[name];
      sum.name = name;
      sum.ns += entry->ns;
      ++sum.stages;
    }
  std::vector<KindTime> out;
  for (auto& [name, sum] : sums) out.push_back(std::move(sum));
  std::sort(out.begin(), out.end(), [](const KindTime& a, const KindTime& b) { return a.ns > b.ns; });
  return out;
}

cost::CostMachine cost_machine(const config::Config& config) {
  cost::CostMachine out;
  out.name = processor_name();
  out.kind = config.device.kind;
  out.cores = config::usable_cores();
  out.threads = config.device.threads;
  if (out.kind == "cuda") out.gpu = device::cuda::facts().name;
  return out;
}

cost::CostFile measure_costs(const config::Config& config, const CostBenchOptions& options) {
  if (options.ranks < 1 || options.steps < 1)
    base::fail("{} ranks and {} steps; needed 1 or more of both", options.ranks, options.steps);
  if (config.device.kind == "cuda" && options.ranks > 1)
    base::fail(
        "costs of {} ranks with device.kind = \"cuda\": on a GPU one rank is measured; needed --ranks 1, or "
        "device.kind = \"cpu\"",
        options.ranks);
  schedule::fitted_mesh(config, schedule::layout_of(config, options.ranks));
  // A rank is measured with the threads it would have beside the others of its machine.
  config::Config rank = config;
  const int64_t declared = config.parallel.ranks_per_node;
  rank.device.threads =
      config::threads_of_rank(config, declared > 0 ? std::min(declared, options.ranks) : options.ranks);
  return CostBench(rank, options).run();
}

}  // namespace pleat::bench
