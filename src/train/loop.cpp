#include "train/loop.h"

#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/posix_vfs.h"
#include "base/replace_file.h"
#include "checkpoint/best.h"
#include "checkpoint/load.h"
#include "checkpoint/retain.h"
#include "checkpoint/save.h"
#include "comm/inject.h"
#include "config/run_files.h"
#include "data/byte_tokenizer.h"
#include "device/cpu/blas.h"
#include "device/cuda/cuda.h"
#include "infer/generate.h"
#include "kernels/cuda/choices.h"
#include "report/console.h"
#include "report/jsonl_log.h"
#include "report/tensorboard.h"
#include "report/time_shares.h"
#include "run/leftovers.h"
#include "run/lock.h"
#include "run/origin.h"
#include "train/announce.h"
#include "train/bigram.h"
#include "train/checkpoint_owner.h"
#include "train/choices_cache.h"
#include "train/launch.h"
#include "train/matmul_choices.h"
#include "train/memory.h"
#include "train/own_tokenizer.h"
#include "train/run_tokenizer.h"
#include "train/start.h"
#include "train/step_breakdown.h"
#include "train/stop_signal.h"

namespace pleat::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

double wall_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}
double steady_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The pieces a run writes to, opened in the right place after resume is settled.
class Run {
 public:
  // `carrier` says what the ranks are, for people.
  Run(const config::Config& config, const LoopOptions& options, runtime::Crew& crew, std::string carrier,
      Start start)
      : options_(options),
        crew_(crew),
        carrier_(std::move(carrier)),
        start_(std::move(start)),
        in_use_(names_in_use(config::resolve(config))),
        tokenizer_(config, keeps_its_data(), in_use_),
        named_(with_tokenizer(config, tokenizer_.name())),
        asked_(prepared()),
        config_(config::resolve(asked_)),
        choices_line_(take_choices()),
        trainer_(config_, choice(), hooks(), &crew) {
    if (!crew_.leads()) options_.quiet = true;
    if (!options_.quiet) announce(named_, trainer_, carrier_, options_.verbose);
    if (!options_.quiet && !choices_line_.empty()) fmt::print(stderr, "gpu: {}\n", choices_line_);
    if (start_.from) resume();
    accept();
    if (!start_.from && options_.write_start) begin_from_weights();
    if (!crew_.leads()) return;
    start_.require_places();
    recall_wall_time();
    log_.emplace(trainer_.run_state().step > 0
                     ? report::JsonlLog::resumed(path("metrics.jsonl"), trainer_.run_state().step)
                     : fresh_log());
    for (const std::string& fault : log_->faults()) fmt::print(stderr, "{}\n", fault);
    if (config_.log.tensorboard) tensorboard_.emplace(path("tensorboard"), trainer_.run_state().step);
    if (trainer_.run_state().step > 0) recall();
    keep_choices();
    tidy();
  }

  LoopResult run() {
    report::Progress progress(config_.train.steps, report::Progress::mode_of_stderr(),
                              options_.quiet ? [](std::string_view) {} : report::Progress::to_stderr(),
                              seconds_between_lines(), report::terminal_width());
    base::ExitCode code = base::ExitCode::Done;
    if (stop_asked() && trainer_.run_state().step < config_.train.steps) {
      progress.message(
          "asked to stop before the first step: nothing to save, run the same command again to go on");
      code = base::ExitCode::Retry;
    }
    while (code == base::ExitCode::Done && trainer_.run_state().step < config_.train.steps) {
      interpret::RunOptions how;
      const int64_t next = trainer_.run_state().step + 1;
      const bool draw = next == config_.log.timeline_step;
      const bool break_down = config_.log.breakdown_every > 0 && next % config_.log.breakdown_every == 0;
      how.timing = crew_.leads() && (draw || break_down);
      StepOutcome outcome = trainer_.step(how);
      const int64_t step = trainer_.run_state().step;
      if (how.timing && draw) write_timeline();
      if (outcome.committed && !outcome.culprit.empty())
        progress.message(fmt::format("step {} had to be run twice: {}", step, outcome.culprit));
      if (!outcome.overflow.empty())
        progress.message(
            fmt::format("step {} was run again with room for every row: {}", step, outcome.overflow));
      // A step that was run twice has no single time.
      if (how.timing && break_down && outcome.culprit.empty() && outcome.overflow.empty())
        show_breakdown(outcome.record, progress);
      if (!outcome.committed)
        progress.message(fmt::format("step {} refused, no weight was touched: {}", step, outcome.culprit));
      const bool last = step == config_.train.steps;
      // The same part of the data each time, at the end too: these losses can be compared, and the best found.
      const bool evaluate = trainer_.has_validation() &&
                            (last || (config_.train.eval_every > 0 && step % config_.train.eval_every == 0));
      std::optional<double> valid_loss;
      std::exception_ptr failed;
      if (evaluate) {
        try {
          const EvalOutcome eval = trainer_.evaluate(config_.train.eval_batches);
          valid_loss = eval.loss;
          add_eval(outcome.record, eval);
          if (eval.all && last) final_eval_ = eval;
        } catch (...) {
          if (!crew_.alone()) throw;  // the others are elsewhere: no state can be gathered
          failed = std::current_exception();
        }
      }
      note(outcome.record);
      if (failed) {  // what was trained is not lost with it
        save(progress, {});
        progress.message(fmt::format("the evaluation failed: saved step {} before the run stops", step));
        std::rethrow_exception(failed);
      }
      const int64_t every = config_.log.console_every;
      if (every > 0 && (step % every == 0 || last || outcome.record.eval))
        progress.step_done(outcome.record, steady_now());
      if (trainer_.run_state().refused_in_row >= config_.train.max_refused_steps) {
        progress.message(fmt::format("{} in a row refused: stopping. Last: {}",
                                     base::counted(trainer_.run_state().refused_in_row, "step"),
                                     outcome.culprit));
        code = base::ExitCode::Numerical;
        break;
      }
      const bool stop = (stop_asked() || step == options_.stop_after) && !last;
      const bool due = config_.checkpoint.every > 0 && step % config_.checkpoint.every == 0;
      if (due || stop || (last && config_.checkpoint.save_at_end)) save(progress, valid_loss);
      if (stop) {
        progress.message(
            fmt::format("asked to stop: saved step {}, run the same command again to go on", step));
        code = base::ExitCode::Retry;
        break;
      }
    }
    progress.finish();
    return finish(code);
  }

 private:
  // Of progress where lines are not rewritten: whoever asked for a number of steps gets them all.
  double seconds_between_lines() const { return named_.asked.contains("log.console_every") ? 0.0 : 5.0; }

  // What a run has been trained on stays as it is.
  bool keeps_its_data() const { return start_.from && !is_unseen(*start_.from) && !options_.allow_change; }

  // Text becomes a dataset once. The leader writes; whoever comes later finds it.
  config::Config prepared() {
    if (crew_.leads() && !options_.quiet && !tokenizer_.note().empty())
      fmt::print(stderr, "note: {}\n", tokenizer_.note());
    PreparedData how;
    how.quiet = options_.quiet;
    how.in_use = in_use_;
    how.tokenizer_name = tokenizer_.name();
    how.before_writing = [this] { sign(); };
    if (keeps_its_data())
      how.trained_with =
          config::placed(config::parse_record(start_.from->text("config")), named_.log.run_dir);
    const config::Config named = with_tokenizer(named_, tokenizer_.read_from());
    config::Config out;
    if (crew_.leads()) out = with_prepared_data(named, how);
    crew_.wait_for_all("start.data");
    how.quiet = true;
    if (!crew_.leads()) out = with_prepared_data(named, how);
    return with_tokenizer(out, tokenizer_.name());
  }

  void sign() {
    const bool first = start_.lock && !start_.is_signed;
    start_.sign();
    if (first) run::remove_leftovers(named_.log.run_dir + "/data");
  }

  // Nothing is left that could refuse the run: what it uses becomes its own. In this order, so that after a stop
  // at any moment asked.toml, config.toml and what they name belong together.
  void accept() {
    if (!crew_.leads()) return;
    start_.require_places();
    if (!start_.lock) run::make_folder(config_.log.run_dir);
    sign();
    own_checkpoints(config_);
    if (!start_.lock) start_.places.emplace_back(config_.log.run_dir, run::kRunKey);
    tokenizer_.write();
    if (!start_.from && options_.write_origin)
      options_.write_origin(config_);
    else if (!start_.from)  // of a start that was stopped before this
      fs::remove(path(run::kOriginName));
    config::write_run_files(named_, asked_, config_);
  }

  void begin_from_weights() {
    if (crew_.leads()) options_.write_start(config_);
    crew_.wait_for_all("start.weights");
    start_.from = checkpoint::open_step(vfs(), config_.checkpoint.dir, 0);
    resume();
  }

  runtime::ProgramChoice choice() const {
    runtime::ProgramChoice c;
    c.logits = crew_.alone();
    return c;
  }

  // A signal may have reached one process only.
  bool stop_asked() const { return crew_.any("loop.stop", StopSignal::asked()); }

  TrainerHooks hooks() const {
    TrainerHooks h;
    if (options_.fault_step)
      h.before_run = [step = *options_.fault_step](int64_t now, interpret::Executor& e) {
        if (now == step) e.at(program::step::norm)[0] = std::numeric_limits<double>::quiet_NaN();
      };
    return h;
  }

  std::string path(const std::string& name) const { return config_.log.run_dir + "/" + name; }

  report::JsonlLog fresh_log() const {
    // A run that never reached its first save left lines behind; they belong to no state any more.
    std::error_code ignored;
    fs::remove(path("metrics.jsonl"), ignored);
    return report::JsonlLog::fresh(path("metrics.jsonl"));
  }

  // The algorithms of the checkpoint, else of an earlier start in this folder, else of the file the
  // configuration names; returns a line for the log.
  // Ranks on a GPU are threads with one table, so one of them fills it before any of them asks it.
  std::string take_choices() {
    if (config_.device.kind != "cuda") return {};
    return crew_.tell("algorithms of products", crew_.leads() ? read_choices() : std::string());
  }

  std::string read_choices() {
    const std::string file = path(kMatmulChoicesFile);
    std::string text, where;
    bool asked = false;
    if (start_.from && start_.from->manifest().texts.contains(kMatmulChoices))
      text = start_.from->text(kMatmulChoices), where = start_.from->path();
    else if (vfs().stat(file))
      text = base::read_file(vfs(), file, kMaxMatmulChoicesBytes), where = file;
    else if (where = config_.device.matmul_choices; !where.empty())
      text = base::read_file(vfs(), where, kMaxMatmulChoicesBytes), asked = true;
    else
      return read_kept_choices();
    TakenChoices taken = take(choices_from_json(text, where), matmul_machine(), where);
    if (asked && taken.use.empty()) base::fail("device.matmul_choices: {}", taken.line);
    kernels::use_matmul_choices(taken.use);
    return taken.line;
  }

  // Those that earlier runs on this machine have measured.
  static std::string read_kept_choices() {
    const std::string folder = cache_folder();
    if (folder.empty()) return {};
    std::string line;
    const std::string file = choices_cache_path(folder, matmul_machine());
    const SavedChoices kept = read_choices_cache(file, matmul_machine(), line);
    if (kept.choices.empty()) return line;
    kernels::use_matmul_choices(kept.choices);
    return fmt::format("{} algorithms of dense products known from {}; others are measured",
                       kept.choices.size(), file);
  }

  void keep_choices() {
    if (!trainer_.programs().machine()) return;
    const SavedChoices now = current_choices();
    base::replace_file(path(kMatmulChoicesFile), to_json(now));
    const std::string folder = cache_folder();
    if (folder.empty()) return;
    const std::string line = add_to_choices_cache(choices_cache_path(folder, now.machine), now);
    if (!line.empty() && !options_.quiet) fmt::print(stderr, "gpu: {}\n", line);
  }

  void resume() {
    const checkpoint::Loaded& from = *start_.from;
    const std::vector<std::string> differences = trainer_.restore(
        from, options_.allow_change ? Trainer::OtherData::Allowed : Trainer::OtherData::Refused);
    if (options_.quiet) return;
    if (from.step() == 0)
      fmt::print(stderr, "starting from the weights of {}\n", from.path());
    else
      fmt::print(stderr, "resumed from {}: step {}, {} tensors, data position, counters\n", from.path(),
                 from.step(), from.manifest().tensors.size());
    if (is_unseen(from)) return;  // everything but the model is new, as it should be
    std::vector<std::string> lines;
    if (start_.before) lines = asked_otherwise(*start_.before, named_);
    for (const std::string& d : differences)
      if (!start_.before || d.starts_with(Trainer::kDataChange)) lines.push_back(d);
    for (const std::string& line : lines) fmt::print(stderr, "  changed since it was saved: {}\n", line);
  }

  // Leftovers of a stop between a save and its tidying up.
  void tidy() {
    if (!start_.from) return;
    std::vector<std::string> warnings;
    checkpoint::tidy(vfs(), config_.checkpoint.dir, start_.from->step(), config_.checkpoint.keep, warnings);
    if (!options_.quiet)
      for (const std::string& w : warnings) fmt::print(stderr, "checkpoint: {}\n", w);
  }

  // How long the run took before this process, work that was lost included: before lines are dropped.
  void recall_wall_time() {
    std::error_code ignored;
    if (trainer_.run_state().step == 0 || !fs::exists(path("metrics.jsonl"), ignored)) return;
    report::for_each_good_record(path("metrics.jsonl"), [&](const report::StepRecord& record) {
      if (record.wall_seconds > wall_before_) wall_before_ = record.wall_seconds;
    });
  }

  // What the summary says about the whole run, from the part of the log that survived the stop.
  void recall() {
    report::for_each_record(path("metrics.jsonl"), [&](const report::StepRecord& record) {
      last_loss_ = record.loss;
      if (record.step == trainer_.run_state().step) tokens_before_ = record.tokens - trainer_.tokens_seen();
      count_time(record);
      if (record.eval) note_eval(*record.eval);
    });
  }

  void count_time(const report::StepRecord& record) {
    if (!std::isfinite(record.step_seconds) || !std::isfinite(record.tokens_per_s)) return;
    train_seconds_ += record.step_seconds;
    train_tokens_ += record.tokens_per_s * record.step_seconds;
    model_flops_ += record.model_tflops * record.step_seconds;
    hardware_flops_ += record.hardware_tflops * record.step_seconds;
  }

  double wall_seconds() const { return wall_before_ + steady_now() - started_; }

  void note_eval(const report::EvalRecord& eval) {
    if (best_eval_ == 0 || eval.loss < best_eval_) best_eval_ = eval.loss;
  }

  static void add_eval(report::StepRecord& record, const EvalOutcome& eval) {
    record.eval =
        report::EvalRecord{eval.loss, eval.bits_per_byte > 0 ? eval.bits_per_byte : report::kUnknown};
  }

  void note(report::StepRecord& record) {
    if (record.eval) note_eval(*record.eval);
    last_loss_ = record.loss;
    record.tokens += tokens_before_;
    record.wall_seconds = wall_seconds();
    count_time(record);
    if (!crew_.leads()) return;
    report::StepRecord logged = record;
    if (config_.log.health_every > 0 && record.step % config_.log.health_every != 0 &&
        record.step != config_.train.steps)
      logged.health.clear();
    log_->append(logged);
    if (tensorboard_) tensorboard_->append(logged, wall_now());
  }

  void write_timeline() {
    start_.require_places();
    const interpret::Executor& e = trainer_.programs().train();
    base::replace_file(path("timeline.json"), interpret::to_report_json(e.program(), e.timeline()));
    base::replace_file(path("trace.json"), interpret::to_chrome_json(e.program(), e.timeline()));
  }

  void show_breakdown(report::StepRecord& record, report::Progress& progress) {
    const interpret::Executor& e = trainer_.programs().train();
    const auto classes = step_breakdown(interpret::breakdown(e.program(), e.timeline()), record.step_seconds);
    for (const auto& [name, seconds] : classes) record.breakdown[name] = 1e3 * seconds;
    std::string text = report::time_shares(fmt::format("step {}", record.step), classes, record.step_seconds);
    text.pop_back();  // a message ends its own line
    progress.message(text);
  }

  void save(report::Progress& progress, std::optional<double> valid_loss) {
    checkpoint::SaveOptions o;
    o.keep = config_.checkpoint.keep;
    if (config_.checkpoint.keep_best) o.valid_loss = valid_loss;
    start_.require_places();
    // A checkpoint must never be more durable than the log of the steps that led to it.
    if (log_) log_->sync();
    trainer_.with_state([&](const checkpoint::StateView& state) {
      fs::create_directories(config_.checkpoint.dir);
      checkpoint::SaveResult result;
      try {
        result = checkpoint::save(vfs(), config_.checkpoint.dir, state, o);
      } catch (const base::Error&) {
        start_.require_places();  // where that is why, it says more
        throw;
      }
      for (const std::string& w : result.warnings) progress.message("checkpoint: " + w);
    });
  }

  LoopResult finish(base::ExitCode code) {
    // After the last save, which must not wait for it.
    if (code == base::ExitCode::Done && !final_eval_ && trainer_.has_validation()) {
      final_eval_ = trainer_.evaluate(0, [this] { return stop_asked(); });
      if (final_eval_->stopped) {
        final_eval_.reset();
        if (!options_.quiet)
          fmt::print(
              stderr,
              "asked to stop: every step is trained; 'pleat eval {}' evaluates all of the validation data\n",
              config_.log.run_dir);
      }
    }
    LoopResult out;
    out.code = code;
    out.step = trainer_.run_state().step;
    out.final_eval = final_eval_;
    out.state_sha256 = trainer_.state_sha256();
    out.summary_path = path("summary.json");
    if (!crew_.leads()) return out;

    const runtime::Planned& planned = trainer_.programs().train_plan();
    const ArenaUse memory = arena_use();
    json owners = json::object();
    for (size_t i = 0; i < planned.plan.at_peak.size(); ++i)
      owners[std::string(program::name_of(static_cast<program::Owner>(i)))] = planned.plan.at_peak[i];
    const auto rate = [&](double sum) { return train_seconds_ > 0 ? sum / train_seconds_ : 0; };
    json summary = {
        {"run", fs::absolute(config_.log.run_dir).lexically_normal().filename().string()},
        {"ranks", crew_.setup().world()},
        {"config", config::to_toml(config::in_folder(config_, config_.log.run_dir))},
        {"steps", out.step},
        {"final_loss", last_loss_},
        {"tokens", tokens_before_ + trainer_.tokens_seen()},
        {"tokens_per_s", rate(train_tokens_)},
        {"model_tflops", rate(model_flops_)},
        {"hardware_tflops", rate(hardware_flops_)},
        {"gemm_peak_tflops", trainer_.gemm_rate() / 1e12},
        {"planned_peak_bytes", memory.planned},
        {"measured_peak_bytes", memory.measured},
        {"live_peak_bytes", planned.plan.live_peak_bytes},
        {"outside_bytes", memory.outside},
        {"large_allocations_in_steps",
         trainer_.allocations().available ? json(trainer_.allocations().large) : json(nullptr)},
        {"large_allocations_in_first_steps",
         trainer_.allocations().available ? json(trainer_.first_allocations().large) : json(nullptr)},
        {"memory_by_owner", owners},
        {"blas", device::blas_description()},
        {"state_sha256", out.state_sha256},
        {"refused_steps", trainer_.run_state().refused_total},
        {"wall_seconds", wall_seconds()},
        {"exit_code", static_cast<int>(code)}};
    if (best_eval_ > 0) summary["best_eval_loss"] = best_eval_;
    // Not every step that is evaluated is saved: where there is a best checkpoint, the loss is that one's.
    if (const std::optional<checkpoint::Best> best = checkpoint::read_best(vfs(), config_.checkpoint.dir)) {
      summary["best_checkpoint_step"] = best->step;
      summary["best_eval_loss"] = best->loss;
    }
    if (final_eval_) {
      summary["validation_loss"] = final_eval_->loss;
      summary["validation_tokens"] = final_eval_->tokens;
    }
    if (const std::optional<run::Origin> origin = run::read_origin(config_.log.run_dir))
      summary["origin"] = {
          {"path", origin->path}, {"step", origin->step}, {"state_sha256", origin->state_sha256}};
    if (final_eval_ && final_eval_->bits_per_byte > 0) {
      summary["validation_bits_per_byte"] = final_eval_->bits_per_byte;
      if (trainer_.train_data().num_sources() == 1)
        if (const double bits =
                bigram_bits_per_byte(trainer_.train_data().dataset(0), *trainer_.valid_data());
            bits > 0)
          summary["bigram_bits_per_byte"] = bits;
    }
    if (!config_.data.sources.empty()) summary["sources"] = sources();
    // "byte" is also what stands there when the data came from elsewhere.
    const bool speaks =
        config_.data.tokenizer != "byte" || config_.model.vocab_size >= data::ByteTokenizer::kVocabSize;
    if (code == base::ExitCode::Done && speaks && crew_.alone()) summary["sample"] = sample();
    start_.require_places();
    base::replace_file(out.summary_path, summary.dump(1, ' ', false, json::error_handler_t::replace));
    if (!options_.quiet) say_goodbye(summary, trainer_);
    return out;
  }

  // Of the memory that steps run in: the GPU's where they run there.
  struct ArenaUse {
    int64_t planned = 0, measured = 0, outside = 0;
  };
  ArenaUse arena_use() {
    ArenaUse use;
    int64_t all = 0;
    if (interpret::CudaMachine* gpu = trainer_.programs().machine()) {
      const device::cuda::Facts now = device::cuda::facts();
      use = {gpu->arena_bytes(), gpu->end_of_changes(), 0};
      all = now.memory_bytes - now.free_bytes;
    } else {
      const device::Arena& arena = trainer_.programs().arena();
      use = {arena.size(), arena.end_of_changes(), 0};
      all = process_memory().anonymous_bytes;
    }
    use.outside = std::max<int64_t>(0, all - use.planned);
    return use;
  }

  json sources() const {
    json out = json::array();
    for (const Trainer::SourceUse& use : trainer_.source_uses())
      out.push_back(
          {{"path", use.prefix}, {"weight", use.weight}, {"tokens", use.tokens}, {"epochs", use.epochs}});
    return out;
  }

  std::string sample() {
    const std::shared_ptr<data::TextTokenizer> tokenizer = open_run_tokenizer(config_);
    infer::GenerateOptions o;
    o.max_tokens = 240;
    o.seed = config_.train.seed;
    if (tokenizer->has_end_of_document()) o.stop_tokens = {tokenizer->end_of_document()};
    const std::string prompt = "The ";
    return prompt + tokenizer->decode(generate(trainer_.programs(), tokenizer->encode(prompt), o),
                                      {.skip_special_tokens = true, .skip_unknown_ids = true});
  }

  base::Vfs& vfs() { return *start_.vfs; }

  LoopOptions options_;
  runtime::Crew& crew_;
  const std::string carrier_;
  Start start_;
  const Names in_use_;
  const OwnTokenizer tokenizer_;
  config::Config named_, asked_, config_;  // as asked, with the own tokenizer; with prepared data; resolved
  const std::string choices_line_;
  const double started_ = steady_now();
  Trainer trainer_;
  std::optional<report::JsonlLog> log_;
  std::optional<report::TensorBoardWriter> tensorboard_;
  std::optional<EvalOutcome> final_eval_;
  double best_eval_ = 0, last_loss_ = 0;
  // Over all processes of the run, by its log: seconds in steps, and what was done in them (TFLOP).
  double train_seconds_ = 0, train_tokens_ = 0, model_flops_ = 0, hardware_flops_ = 0;
  double wall_before_ = 0;
  int64_t tokens_before_ = 0;  // of data the run was trained on before it got other data
};

void say_done(const LoopResult& done, const std::string& folder) {
  fmt::print(stderr,
             "already done: {} has trained its {}; nothing was changed. More train.steps go on from there\n"
             "state sha256 {}\n",
             folder, base::counted(done.step, "step"), done.state_sha256);
}

}  // namespace

LoopResult run_training(const config::Config& config, const LoopOptions& options) {
  const StopSignal signal;  // first: a request during start-up counts as well
  LoopResult result;
  const RankMain one_rank = [&](const config::Config& asked, runtime::Crew& crew,
                                const std::string& carrier) {
    Start start = begin(asked, options, crew);
    LoopResult mine;
    if (start.done) {
      mine = *start.done;
      if (crew.leads() && !options.quiet) say_done(mine, asked.log.run_dir);
    } else {
      mine = Run(asked, options, crew, carrier, std::move(start)).run();
    }
    // The first rank here: a process under MPI has one, threads give way to the leader.
    if (crew.leads() || options.ranks == 0) result = std::move(mine);
  };
  launch(config, options.ranks, one_rank,
         options.inject.empty() ? comm::Inject() : comm::inject(comm::parse_fault(options.inject)));
  return result;
}

}  // namespace pleat::train
