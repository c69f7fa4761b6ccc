#include "train/trainer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/counted.h"
#include "base/hash.h"
#include "config/run_files.h"
#include "config/schema.h"
#include "cost/flops.h"
#include "data/byte_tokenizer.h"
#include "device/cpu/gemm_rate.h"
#include "model/decoder.h"
#include "model/overflow.h"
#include "program/repeat.h"
#include "train/code_health.h"
#include "train/crew_peers.h"
#include "train/data_identity.h"
#include "train/leader_work.h"
#include "train/learning_rate.h"
#include "train/matmul_choices.h"

namespace pleat::train {
namespace {

constexpr const char* kUpdateNorm = "update_norm";  // the checkpoint's number

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

data::SamplerOptions sampler_options(const config::Config& c, bool shuffle) {
  data::SamplerOptions o;
  o.seq_len = c.train.seq_len;
  o.seed = static_cast<uint64_t>(c.train.seed);
  o.shuffle = shuffle;
  o.isolate_documents = c.data.isolate_documents;
  o.packing = data::packing_of(c.data.packing);
  return o;
}

data::Mixture open_data(const config::Config& c, std::vector<std::string> prefixes,
                        std::vector<double> weights, bool shuffle) {
  std::vector<std::unique_ptr<data::IndexedDataset>> datasets;
  for (const std::string& prefix : prefixes)
    datasets.push_back(std::make_unique<data::IndexedDataset>(prefix, c.model.vocab_size));
  return {std::move(datasets), weights, sampler_options(c, shuffle)};
}

data::Mixture open_train_data(const config::Config& c) {
  if (c.data.sources.empty()) return open_data(c, {c.data.train}, {1.0}, c.data.shuffle);
  return open_data(c, c.data.sources, c.data.weights, c.data.shuffle);
}

[[noreturn]] void fail_too_little(const config::Config& c, int64_t sequences) {
  base::fail(
      "the validation data holds {} of {} tokens, fewer than train.micro_batch = {}; needed is "
      "more of it (a larger data.valid_split, or a longer data.valid), or a smaller train.micro_batch or "
      "train.seq_len",
      base::counted(sequences, "sequence"), c.train.seq_len, c.train.micro_batch);
}

// What all ranks reach together.
double measure_gemm_rate(const runtime::Crew& crew, runtime::Programs& programs, const config::Config& c) {
  if (programs.machine()) {
    // Processes have a GPU each; threads share one, whose rate is counted once.
    const bool shared = crew.meeting(comm::Buffers::Device) == program::Meeting::OnHost;
    double rate = shared && !crew.leads() ? 0 : programs.machine()->gemm_rate();
    crew.sum("start.gemm_rate", std::span(&rate, 1));
    return rate;
  }
  const tensor::Dtype dtype = c.model.dtype == "float64" ? tensor::Dtype::F64 : tensor::Dtype::F32;
  if (crew.alone()) return device::measure_gemm_rate(programs.pool(), dtype);
  std::vector<double> rates =
      device::measure_gemm_rates(programs.pool(), dtype, [&] { crew.wait_for_all("start.gemm_rate"); });
  crew.sum("start.gemm_rate", rates);
  return *std::max_element(rates.begin(), rates.end());
}

}  // namespace

Trainer::Trainer(const config::Config& config, const runtime::ProgramChoice& choice, TrainerHooks hooks,
                 runtime::Crew* crew)
    : config_(config),
      hooks_(std::move(hooks)),
      own_crew_(crew ? nullptr : std::make_unique<runtime::Crew>(config)),
      crew_(crew ? *crew : *own_crew_),
      train_data_(open_train_data(config)),
      programs_(config, choice, &crew_),
      rows_(config, crew_.setup().mesh, crew_.setup().place) {
  laps_.take(programs_.laps());
  if (!config_.data.valid.empty()) {
    if (config_.data.packing == "stream" &&
        data::IndexedDataset(config_.data.valid, config_.model.vocab_size).num_tokens() <=
            config_.train.seq_len)
      fail_too_little(config_, 0);
    valid_data_.emplace(open_data(config_, {config_.data.valid}, {1.0}, false));
  }
  if (valid_data_ && choice.evaluate)
    num_valid_batches();  // said now, not at the first evaluation or the last
  run_.data = train_data_.start();
  laps_.done("opening the data");
  model_flops_ = cost::model_flops(config_, static_cast<double>(tokens_per_step()),
                                   static_cast<double>(config_.train.seq_len))
                     .total();
  if (choice.train) hardware_flops_ = cost::hardware_flops(programs_.train_plan().program);
  crew_.sum("start.flops", std::span(&hardware_flops_, 1));
  gemm_rate_ = measure_gemm_rate(crew_, programs_, config_);
  laps_.done("rate of a large product");
  programs_.initialize();
  laps_.done("weights");
  sharded_.emplace(programs_, crew_);
}

void Trainer::read_own(data::MixturePosition& position, runtime::BatchCounts& counts) {
  const Feed feed(train_data_, config_.train.micro_batch);
  const int64_t dp = crew_.setup().mesh.dp, mine = crew_.setup().place.at(program::Group::Data);
  for (int64_t replica = 0; replica < dp; ++replica)
    if (replica == mine)
      feed.read(position, microbatch_, counts);
    else
      feed.skip(position);
}

void Trainer::run(interpret::Executor& executor, interpret::RunOptions options) {
  if (program::has_repeat(executor.program()))
    options.before_pass = [this, &executor](int64_t) {
      runtime::BatchCounts counted;  // they are in the step's counts already
      read_own(repeated_from_, counted);
      rows_.write(executor, executor.program().repeat.microbatch, microbatch_);
    };
  executor.run(options);
}

void Trainer::write_inputs(interpret::Executor& executor, data::MixturePosition& position,
                           runtime::BatchCounts& counts) {
  const program::Repeat& repeat = executor.program().repeat;
  const int64_t own = crew_.setup().num_microbatches(config_);
  for (int64_t mb = 0; mb < own; ++mb) {
    if (mb == repeat.microbatch) repeated_from_ = position;
    read_own(position, counts);
    // Those between the first and the last pass are read for their counts; run() reads them again.
    const int64_t behind = mb - (repeat.times - 1);
    if (repeat.microbatch < 0 || mb < repeat.microbatch)
      rows_.write(executor, mb, microbatch_);
    else if (behind > repeat.microbatch)
      rows_.write(executor, behind, microbatch_);
  }
  int64_t sums[] = {counts.tokens, counts.loss_tokens, counts.valid_tokens, counts.documents};
  if (!crew_.setup().leads_replica()) std::fill(std::begin(sums), std::end(sums), 0);
  crew_.sum("step.counts", sums);
  counts = {sums[0], sums[1], sums[2], sums[3]};
  const int64_t step = run_.step + 1;
  runtime::write_norm(executor, counts, config_.train.num_microbatches);
  runtime::write_rng(executor, config_.train.seed, step);
  runtime::write_hyper(executor, learning_rate(config_, step), step - run_.refused_total, run_.update_norm);
  if (hooks_.before_run) hooks_.before_run(step, executor);
}

namespace {

bool committed(interpret::Executor& executor) { return executor.at(program::step::commit)[0] != 0; }

}  // namespace

StepOutcome Trainer::step(const interpret::RunOptions& asked) {
  interpret::Executor& executor = programs_.train();
  const auto start = std::chrono::steady_clock::now();
  data::MixturePosition position = run_.data;
  runtime::BatchCounts counts;
  write_inputs(executor, position, counts);
  interpret::RunOptions options = asked;
  options.in_order |= config_.device.in_order;
  // One watch for the process: ranks that are threads would count each other. The clocks of a timed step need
  // memory on a GPU.
  const bool watch = crew_.alone() && !(options.timing && programs_.machine());
  if (watch) base::start_allocation_watch();
  run(executor, options);
  if (watch) {
    allocations_ += base::stop_allocation_watch();
    if (steps_here_ < kFirstSteps) first_allocations_ = allocations_;
  }

  StepOutcome out;
  interpret::Executor* ran = &executor;
  if (const std::string fault = past_budget(); !fault.empty()) {
    if (!programs_.rerun()) base::fail("step {}: {}", run_.step + 1, fault);
    // No weight was touched, and all ranks know it: the same inputs for the program with room for all rows.
    out.overflow = fault;
    ran = programs_.rerun();
    data::MixturePosition again = run_.data;
    runtime::BatchCounts ignored;
    write_inputs(*ran, again, ignored);
    run(*ran, options);
  }
  out.committed = committed(*ran);
  read_results(*ran, out.record);
  if (!out.committed) require_untouched(out.record);
  if (!out.committed) look_again(*ran, out);
  ++run_.step;
  ++steps_here_;
  run_.data = position;
  run_.refused_in_row = out.committed ? 0 : run_.refused_in_row + 1;
  run_.refused_total += !out.committed;
  if (out.committed && config_.optimizer.clip_by == "previous") run_.update_norm = out.record.grad_norm;

  report::StepRecord& r = out.record;
  r.step = run_.step;
  r.tokens = tokens_seen();
  r.refused_steps = run_.refused_total;
  r.step_seconds = seconds_since(start);
  r.tokens_per_s = static_cast<double>(counts.tokens) / r.step_seconds;
  r.model_tflops = model_flops_ / r.step_seconds / 1e12;
  r.hardware_tflops = hardware_flops_ / r.step_seconds / 1e12;
  r.percent_of_gemm = 100.0 * hardware_flops_ / r.step_seconds / gemm_rate_;
  return out;
}

std::string Trainer::past_budget() {
  interpret::Executor& executor = programs_.train();
  if (!executor.has(program::step::overflow)) return "";
  return model::overflow_fault(executor.at(program::step::overflow), config_, crew_.setup().mesh);
}

void Trainer::require_untouched(const report::StepRecord& record) const {
  if (config_.optimizer.update_at != "backward" || !std::isfinite(record.loss)) return;
  base::fail_with(
      base::ExitCode::Numerical,
      "step {}: the norm of the gradients is {}, needed is a finite one, and with "
      "optimizer.update_at = \"backward\" some weights may have moved already. Nothing of this step "
      "is saved. Go on from the last checkpoint with optimizer.update_at = \"end\", which leaves "
      "such a step out and names the stage it comes from",
      run_.step + 1, record.grad_norm);
}

void Trainer::look_again(interpret::Executor& executor, StepOutcome& out) {
  // The same inputs again (memory of the step may have been reused), with a look at every value.
  data::MixturePosition again = run_.data;
  runtime::BatchCounts ignored;
  write_inputs(executor, again, ignored);
  interpret::RunOptions look;
  look.find_non_finite = true;
  look.go_on = !crew_.alone();
  run(executor, look);
  const std::optional<interpret::NonFinite>& bad = executor.non_finite();
  // Ranks that only received a bad number come after those that computed one; then the earliest stage.
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t key = kNone;
  if (bad) {
    const bool received = is_exchange(executor.program().stages[static_cast<size_t>(bad->stage)].op);
    key = ((received ? int64_t{1} << 32 : 0) + bad->stage) * crew_.setup().world() + crew_.setup().rank();
  }
  const int64_t first = crew_.smallest("refused.first", key);
  if (first != kNone && (crew_.alone() || !committed(executor))) {
    const int rank = static_cast<int>(first % crew_.setup().world());
    out.culprit = crew_.tell("refused.culprit", bad ? bad->text : "", rank);
    if (!crew_.alone()) out.culprit = fmt::format("rank {}: {}", rank, out.culprit);
    return;
  }
  // The second run was a step like any other and its update is in the weights: that is the step's result.
  out.culprit = "no stage wrote a non-finite value when run again: the fault did not repeat";
  out.committed = committed(executor);
  out.record = {};
  read_results(executor, out.record);
}

void Trainer::read_results(interpret::Executor& executor, report::StepRecord& r) {
  namespace step = program::step;
  const std::span<const double> loss = executor.at(step::loss), scale = executor.at(step::grad_scale);
  r.loss = loss[0] / std::max(loss[1], 1.0);
  r.lr = learning_rate(config_, run_.step + 1);
  r.grad_norm = scale[0];
  r.clip_scale = scale[1];
  const auto& o = config_.optimizer;
  if (o.clip_by == "previous" && run_.update_norm > o.clip) r.clip_scale = o.clip / run_.update_norm;
  r.codes = code_health(executor);
  const model::AuxCoefficients aux = model::aux_coefficients(config_);
  const std::pair<const char*, double> kinds[] = {
      {"aux", aux.micro}, {"seq_aux", aux.sequence}, {"global_aux", aux.global}, {"z", aux.z}};

  // What the stages of a pipeline know of their layers, as one row of numbers: {sum, tokens} of each depth,
  // then per layer the expert loads, dropped, router statistics, auxiliary losses, correction bias.
  const size_t experts = static_cast<size_t>(config_.moe.num_experts);
  const bool biased = model::balances_by(config_, "bias");
  const size_t depths = static_cast<size_t>(config_.model.num_mtp_layers);
  const size_t width = experts + 1 + 4 + 4 + (biased ? experts : 0);
  std::vector<int> layers;
  for (int layer = 0; layer < config::num_all_layers(config_); ++layer)
    if (config::is_moe_layer(config_, layer)) layers.push_back(layer);
  std::vector<double> numbers(2 * depths + layers.size() * width, 0.0);
  const model::Role& role = crew_.setup().role;
  const auto copy = [&](double* to, const auto& what, int layer) {
    for (const auto number : executor.at(what, layer)) *to++ = static_cast<double>(number);
  };
  for (size_t k = 0; k < depths && role.has_head(); ++k)
    copy(&numbers[2 * k], step::mtp_loss, static_cast<int>(config_.model.num_layers) + static_cast<int>(k));
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!model::holds_layer(config_, role, layers[i])) continue;
    double* at = &numbers[2 * depths + i * width];
    copy(at, step::load, layers[i]);
    copy(at + experts, step::dropped, layers[i]);
    copy(at + experts + 1, step::router_stats, layers[i]);
    if (aux.any()) copy(at + experts + 5, step::aux_losses, layers[i]);
    if (biased) {
      std::vector<float> bias(experts);
      programs_.read(fmt::format("layers.{}.router.expert_bias", layers[i]),
                     std::as_writable_bytes(std::span(bias)));
      std::copy(bias.begin(), bias.end(), at + experts + 9);
    }
  }
  crew_.sum_stages("step.results", numbers);

  for (size_t k = 0; k < depths; ++k)
    r.mtp_loss.push_back(numbers[2 * k] / std::max(numbers[2 * k + 1], 1.0));
  for (size_t i = 0; i < layers.size(); ++i) {
    const double* at = &numbers[2 * depths + i * width];
    const std::vector<int64_t> load(at, at + experts);
    const std::vector<float> bias(at + experts + 9, at + experts + 9 + (biased ? experts : 0));
    const double* stats = at + experts + 1;
    r.health.push_back(report::router_health(layers[i], load, static_cast<int64_t>(at[experts]),
                                             {stats[0], std::sqrt(stats[1] / std::max(stats[2], 1.0))},
                                             bias));
    if (!aux.any()) continue;
    for (size_t k = 0; k < 4; ++k)
      if (kinds[k].second != 0) r.aux[kinds[k].first] += kinds[k].second * at[experts + 5 + k];
  }
}

int64_t Trainer::num_valid_batches() const {
  const int64_t sequences = valid_data_->sampler(0).num_samples_per_epoch();
  if (sequences < config_.train.micro_batch) fail_too_little(config_, sequences);
  return sequences / config_.train.micro_batch;
}

EvalOutcome Trainer::evaluate(int64_t num_batches, const std::function<bool()>& stop) {
  if (!valid_data_) base::fail("there is no validation data: set data.valid or data.valid_split");
  const int64_t available = num_valid_batches();
  interpret::Executor& executor = programs_.evaluate();
  const Feed feed(*valid_data_, config_.train.micro_batch);
  const int64_t n = num_batches == 0 ? available : std::min(num_batches, available);
  // "byte" is also what is there when nobody said anything: other ids show that the text is no bytes.
  bool bytes = config_.data.tokenizer == "byte";
  const int64_t dp = crew_.setup().mesh.dp, mine = crew_.setup().place.at(program::Group::Data);
  data::MixturePosition position = valid_data_->start();
  programs_.gather_weights();
  double sum = 0;
  int64_t tokens = 0, num_bytes = 0;
  for (int64_t begin = 0; begin < n; begin += dp) {
    if (stop && stop()) return {.stopped = true};
    // A replica of its own for each; where there are no more, rows that count nowhere.
    for (int64_t i = begin; i < begin + dp; ++i) {
      runtime::BatchCounts counts;
      if (i >= n) {
        if (i - begin == mine) feed.blank(microbatch_);
      } else if (i - begin == mine) {
        feed.read(position, microbatch_, counts);
      } else {
        feed.skip(position);
      }
    }
    rows_.write(executor, 0, microbatch_);
    runtime::write_rng(executor, config_.train.seed, 0);
    for (size_t t = 0; bytes && t < microbatch_.labels.size(); ++t) {
      num_bytes += microbatch_.loss_mask[t] && microbatch_.labels[t] < data::ByteTokenizer::kEndOfDocument;
      bytes = microbatch_.labels[t] < data::ByteTokenizer::kVocabSize;
    }
    executor.run({.in_order = config_.device.in_order});
    const std::span<const double> loss = executor.at(program::step::loss);
    sum += loss[0];
    tokens += static_cast<int64_t>(loss[1]);
  }
  std::array<int64_t, 2> seen = {crew_.setup().leads_replica() ? num_bytes : 0, !bytes};
  crew_.sum("evaluate.bytes", std::span(seen));
  num_bytes = seen[1] == 0 ? seen[0] : 0;
  EvalOutcome out;
  out.tokens = tokens;
  out.all = n == available;
  out.loss = sum / static_cast<double>(std::max<int64_t>(tokens, 1));
  if (num_bytes > 0) out.bits_per_byte = sum / std::numbers::ln2 / static_cast<double>(num_bytes);
  return out;
}

int64_t Trainer::tokens_per_step() const {
  return config_.train.micro_batch * config_.train.num_microbatches * config_.train.seq_len;
}

int64_t Trainer::tokens_seen() const {
  int64_t sequences = 0;
  for (size_t i = 0; i < train_data_.num_sources(); ++i) sequences += train_data_.taken(run_.data, i);
  return sequences * config_.train.seq_len;
}

const std::string& Trainer::data_identity() const {
  if (identity_.empty())
    identity_ = train::data_identity(train_data_, config_.log.run_dir, crew_.num_threads());
  return identity_;
}

void Trainer::settle_identity() {
  work_on_leader(crew_, "data.identity", [this] { data_identity(); });
}

std::vector<Trainer::SourceUse> Trainer::source_uses() const {
  std::vector<SourceUse> out;
  for (size_t i = 0; i < train_data_.num_sources(); ++i) {
    const data::Sampler& sampler = train_data_.sampler(i);
    const double epochs = static_cast<double>(train_data_.taken(run_.data, i)) /
                          static_cast<double>(sampler.num_samples_per_epoch());
    out.push_back(
        {train_data_.dataset(i).prefix(), train_data_.weight(i),
         static_cast<int64_t>(std::llround(epochs * static_cast<double>(sampler.num_tokens_per_epoch()))),
         epochs});
  }
  return out;
}

checkpoint::StateView Trainer::scalars() const {
  checkpoint::StateView out;
  out.step = run_.step;
  out.integers = {{"refused_in_row", run_.refused_in_row}, {"refused_total", run_.refused_total}};
  for (size_t i = 0; i < run_.data.sources.size(); ++i) {
    // One source is named as it was before there were mixtures.
    const std::string prefix = run_.data.sources.size() == 1 ? "data." : fmt::format("data.{}.", i);
    out.integers[prefix + "epoch"] = run_.data.sources[i].epoch;
    out.integers[prefix + "next_sample"] = run_.data.sources[i].next_sample;
    if (run_.data.sources.size() > 1) out.integers[prefix + "taken"] = train_data_.taken(run_.data, i);
  }
  // Names as in the run's own files: a checkpoint moves with its folder.
  out.texts = {{"config", config::to_toml(config::in_folder(config_, config_.log.run_dir))},
               {"data", data_identity()}};
  if (config_.optimizer.clip_by == "previous") out.reals[kUpdateNorm] = run_.update_norm;
  if (programs_.machine()) out.texts[kMatmulChoices] = to_json(current_choices());
  return out;
}

checkpoint::StateView Trainer::state() const {
  PLEAT_CHECK(crew_.alone(), "one of several ranks has only a part of the state");
  checkpoint::StateView out = scalars();
  out.tensors = programs_.tensors();
  return out;
}

void Trainer::with_state(const std::function<void(const checkpoint::StateView&)>& use) {
  settle_identity();
  sharded_->gather([&](std::vector<checkpoint::TensorRef> tensors) {
    checkpoint::StateView view = scalars();
    view.tensors = std::move(tensors);
    use(view);
  });
}

checkpoint::SaveResult Trainer::save(base::Vfs& vfs, const std::string& directory,
                                     const checkpoint::SaveOptions& options) {
  if (crew_.alone()) return checkpoint::save(vfs, directory, state(), options);
  settle_identity();
  checkpoint::Share share;
  if (crew_.leads()) {
    checkpoint::StateView view = scalars();
    share = {0, {}, std::move(view.integers), std::move(view.reals), std::move(view.texts)};
  }
  share.step = run_.step;
  share.tensors = sharded_->share();
  CrewPeers peers(crew_, "checkpoint.save");
  return checkpoint::save(vfs, directory, share, options, peers);
}

std::string Trainer::state_sha256() {
  std::string digest;
  with_state([&](checkpoint::StateView view) {
    // Where files lie, how ranks are laid out, how often files are written and how fast products were when
    // they were measured is not state: two runs that compute the same must agree.
    view.texts.erase("config");
    view.texts.erase(kMatmulChoices);
    digest = checkpoint::state_sha256(view);
  });
  return crew_.tell("state.digest", digest);
}

data::MixturePosition Trainer::saved_position(const checkpoint::Loaded& loaded) const {
  data::MixturePosition position = train_data_.start();
  const size_t n = position.sources.size();
  for (size_t i = 0; i < n; ++i) {
    const std::string prefix = n == 1 ? "data." : fmt::format("data.{}.", i);
    position.sources[i] = {loaded.integer(prefix + "epoch"), loaded.integer(prefix + "next_sample")};
    train_data_.sampler(i).window_at(position.sources[i]);  // throws where there is no such place
    if (n > 1 && loaded.integer(prefix + "taken") != train_data_.taken(position, i))
      base::fail("{}: {}taken is {}, but the position of this source says {}", loaded.path(), prefix,
                 loaded.integer(prefix + "taken"), train_data_.taken(position, i));
  }
  return position;
}

namespace {

// A run that clipped otherwise has saved none: its next step is not scaled.
double saved_update_norm(const checkpoint::Loaded& loaded) {
  if (!loaded.manifest().reals.contains(kUpdateNorm)) return 0;
  const double norm = loaded.real(kUpdateNorm);
  if (!(norm >= 0) || !std::isfinite(norm))
    base::fail("{}: {} is {}; needed is a finite number, 0 or more", loaded.path(), kUpdateNorm, norm);
  return norm;
}

}  // namespace

std::vector<std::string> Trainer::restore(const checkpoint::Loaded& loaded, OtherData other_data) {
  const config::Config saved =
      config::parse_record(loaded.text("config"), {}, loaded.path() + " (saved config)");
  const bool imported = is_unseen(loaded);
  std::vector<std::string> allowed, refused;
  for (const config::Change& change :
       config::changes(saved, config::in_folder(config_, config_.log.run_dir))) {
    using config::OnResume;
    const OnResume rule = *change.key->resume;
    // A position in the data counts sequences in a shuffled order: with another length, seed or order it
    // would point elsewhere, and samples would be seen twice or never.
    const bool refuses = rule == OnResume::SameModel || (rule == OnResume::Never && !imported);
    (refuses ? refused : allowed).push_back(change.text());
  }
  if (!refused.empty())
    base::fail(
        "{} was saved by another model or with another order of the data; these settings differ (saved -> "
        "now):\n  {}\nUse the saved settings, or another log.run_dir for a new run; with --init it starts "
        "from these weights",
        loaded.path(), fmt::join(refused, "\n  "));
  // The leader reads it all; the others take its word.
  if (!imported) settle_identity();
  if (!imported) identity_ = crew_.tell("data.identity", crew_.leads() ? data_identity() : std::string());
  bool same_data = !imported;
  if (const std::string& now = identity_; !imported && !is_same_data(loaded.text("data"), now, train_data_)) {
    same_data = false;
    if (other_data == OtherData::Refused) {
      const bool plain = config_.data.sources.empty() && num_sources_in(loaded.text("data")) == 1;
      base::fail("{} was saved while training on {}; {} takes the new data, from its start", loaded.path(),
                 plain ? fmt::format("{}, but {} holds {}", loaded.text("data"), config_.data.train, now)
                       : "another mixture: " + data_change(loaded.text("data"), now),
                 config::kAllowChange);
    }
    allowed.push_back(kDataChange + data_change(loaded.text("data"), now) + "; the new data from its start");
  }
  RunState run;
  run.step = loaded.step();
  run.data = same_data ? saved_position(loaded) : train_data_.start();
  // Steps that were refused count in the optimizer's schedule: a number that cannot be would spoil the weights.
  const auto counter = [&](const char* name, int64_t most) {
    const int64_t value = loaded.integer(name);
    if (value < 0 || value > most)
      base::fail("{}: {} is {}; needed is 0 to {}", loaded.path(), name, value, most);
    return value;
  };
  run.refused_total = counter("refused_total", run.step);
  run.refused_in_row = counter("refused_in_row", run.refused_total);
  if (config_.optimizer.clip_by == "previous") run.update_norm = saved_update_norm(loaded);
  sharded_->restore(loaded);
  run_ = run;
  return allowed;
}

bool is_unseen(const checkpoint::Loaded& loaded) {
  return loaded.step() == 0 && loaded.text("data") == kImportedData;
}

}  // namespace pleat::train
