#include "bench/rank_bench.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/rng.h"
#include "comm/mirror/mirror_world.h"
#include "cost/stage_work.h"
#include "program/repeat.h"
#include "program/step_values.h"
#include "runtime/input_rows.h"
#include "runtime/programs.h"
#include "runtime/step_inputs.h"

namespace pleat::bench {
namespace {

double middle(std::vector<double> values) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

runtime::Microbatch random_rows(const config::Config& c, int64_t step, int64_t mb) {
  const int64_t length = c.train.seq_len, T = c.train.micro_batch * length;
  const base::RandomStream random(static_cast<uint64_t>(c.train.seed), base::RandomUse::Test,
                                  static_cast<uint32_t>(step), 0);
  runtime::Microbatch out;
  out.resize(static_cast<size_t>(T));
  for (int64_t t = 0; t < T; ++t) {
    const auto i = static_cast<size_t>(t);
    const int64_t row = t / length * length;
    out.tokens[i] = static_cast<int32_t>(random.uniform(static_cast<uint64_t>(mb * T + t)) *
                                         static_cast<double>(c.model.vocab_size));
    out.positions[i] = static_cast<int32_t>(t - row);
    out.doc_start[i] = static_cast<int32_t>(row);
    out.valid[i] = 1;
    out.token_index[i] = mb * T + t;
    out.loss_mask[i] = (t + 1) % length != 0;
  }
  std::copy(out.tokens.begin() + 1, out.tokens.end(), out.labels.begin());
  out.labels.back() = 0;
  return out;
}

void write_step(interpret::Executor& executor, const config::Config& c, const runtime::RankSetup& setup,
                int64_t step) {
  const runtime::InputRows rows(c, setup.mesh, setup.place);
  for (int64_t mb = 0; mb < setup.num_microbatches(c) && executor.has(program::step::tokens, mb); ++mb)
    rows.write(executor, mb, random_rows(c, step, mb));
  const int64_t n = c.train.num_microbatches * c.train.micro_batch;
  runtime::write_norm(executor, {n * c.train.seq_len, n * (c.train.seq_len - 1), n * c.train.seq_len, n},
                      c.train.num_microbatches);
  runtime::write_rng(executor, c.train.seed, step);
  runtime::write_hyper(executor, 0, step);
}

// The first rank of that stage of the pipeline.
int rank_of_stage(const config::Config& config, int64_t ranks, int64_t pipeline_rank) {
  for (int rank = 0; rank < ranks; ++rank)
    if (runtime::rank_setup(config, static_cast<int>(ranks), rank).place.at(program::Group::Pipeline) ==
        pipeline_rank)
      return rank;
  base::fail("no rank of {} is stage {} of a pipeline of {}", ranks, pipeline_rank, config.parallel.pp);
}

}  // namespace

StageTimes::StageTimes(const program::Program& program) : of_stage_(program.stages.size(), -1) {
  std::map<cost::StageKey, int32_t> slots;
  const program::StageRange repeated = program::repeated(program);
  for (size_t s = 0; s < program.stages.size(); ++s) {
    const program::Stage& stage = program.stages[s];
    if (!cost::has_cost_key(stage)) continue;
    cost::StageKey key = cost::stage_key(program, stage);
    const auto [at, is_new] = slots.emplace(key, static_cast<int32_t>(times_.size()));
    if (is_new)
      times_.push_back({std::move(key), cost::stage_work(program, stage, cost::RoutedRows::Balanced), 0, {}});
    of_stage_[s] = at->second;
    times_[static_cast<size_t>(at->second)].stages +=
        program::passes_of(program, repeated, static_cast<program::StageId>(s));
  }
}

void StageTimes::add(const interpret::Timeline& timeline) {
  for (const interpret::Span& span : timeline.spans) {
    const int32_t slot = of_stage_[static_cast<size_t>(span.stage)];
    // A clock that did not move is not a stage that took no time.
    if (slot >= 0)
      times_[static_cast<size_t>(slot)].ns.push_back(
          static_cast<double>(std::max<int64_t>(span.end_ns - span.start_ns, 1)));
  }
}

std::vector<cost::CostEntry> StageTimes::entries() const {
  std::vector<cost::CostEntry> out;
  for (const Times& t : times_) {
    if (t.ns.empty()) continue;
    const auto [low, high] = std::minmax_element(t.ns.begin(), t.ns.end());
    out.push_back({t.key, t.work, middle(t.ns), *low, *high, static_cast<int64_t>(t.ns.size())});
  }
  std::sort(out.begin(), out.end(),
            [](const cost::CostEntry& a, const cost::CostEntry& b) { return a.key < b.key; });
  return out;
}

double StageTimes::sum_of_medians() const {
  double sum = 0;
  for (const Times& t : times_)
    if (!t.ns.empty()) sum += middle(t.ns) * static_cast<double>(t.stages);
  return sum;
}

RankStep::RankStep(const config::Config& config, int64_t ranks, int64_t pipeline_rank) : config_(config) {
  runtime::ProgramChoice choice;
  choice.evaluate = false;
  if (ranks > 1) {
    if (config.device.kind == "cuda")
      base::fail(
          "one rank of {} is measured by itself with device.kind = \"cpu\"; got \"cuda\", where ranks = 1 is "
          "needed",
          ranks);
    // Of rows that the router sends here by chance there would be `ranks` times as many, or none.
    if (config_.moe.num_experts > 0 && config_.moe.force_routing == "none")
      config_.moe.force_routing = "balanced";
    endpoint_ = comm::mirror_endpoint(static_cast<int>(ranks), rank_of_stage(config_, ranks, pipeline_rank));
    crew_.emplace(config_, *endpoint_, static_cast<int>(config_.device.threads));
  }
  programs_ = std::make_unique<runtime::Programs>(config_, choice, crew_ ? &*crew_ : nullptr);
  programs_->initialize();
  setup_ = crew_ ? crew_->setup() : runtime::one_rank(config_);
}

bool RankStep::run() {
  interpret::RunOptions timed;
  timed.in_order = true;
  timed.timing = true;
  write_step(executor(), config_, setup_, ++step_);
  executor().run(timed);
  return executor().at(program::step::commit)[0] != 0;
}

RankCosts measure_rank(const config::Config& config, const RankRun& run) {
  RankStep rank(config, run.ranks, run.pipeline_rank);
  StageTimes times(rank.executor().program());
  std::vector<double> seconds;
  const int64_t most = 2 * run.steps;  // refused ones included
  for (int64_t step = 0; step < run.warmup; ++step) rank.run();
  for (int64_t step = 0; step < most && std::ssize(seconds) < run.steps; ++step) {
    if (!rank.run()) continue;
    times.add(rank.executor().timeline());
    seconds.push_back(rank.executor().seconds());
  }
  if (std::ssize(seconds) < run.steps)
    base::fail(
        "{} of {} steps were refused, {} good ones are needed: more rows for an expert rank than "
        "moe.token_budget = {} "
        "has room for, or numbers that are not finite",
        most - std::ssize(seconds), most, run.steps, config.moe.token_budget);
  return {times.entries(), middle(seconds) * 1e9, times.sum_of_medians()};
}

}  // namespace pleat::bench
