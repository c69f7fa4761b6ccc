#include "train/loop.h"

#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/make_folders.h"
#include "base/replace_file.h"
#include "checkpoint/save.h"
#include "comm/inject.h"
#include "config/schema.h"
#include "report/console.h"
#include "report/time_shares.h"
#include "train/announce.h"
#include "train/launch.h"
#include "train/open_run.h"
#include "train/run_history.h"
#include "train/start.h"
#include "train/step_breakdown.h"
#include "train/stop_signal.h"
#include "train/summary.h"

namespace pleat::train {
namespace {

double steady_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Loop {
 public:
  Loop(const config::Config& asked, const LoopOptions& options, runtime::Crew& crew,
       const std::string& carrier, Start start)
      : options_(options),
        crew_(crew),
        open_(asked, options, crew, carrier, std::move(start)),
        config_(open_.config()),
        history_(config_, started_) {
    if (crew_.leads()) history_.open(trainer());
  }

  LoopResult run() {
    report::Progress progress(config_.train.steps, report::Progress::mode_of_stderr(),
                              open_.quiet() ? [](std::string_view) {} : report::Progress::to_stderr(),
                              seconds_between_lines(), report::terminal_width());
    base::ExitCode code = base::ExitCode::Done;
    if (stop_asked() && trainer().run_state().step < config_.train.steps) {
      progress.message(
          "asked to stop before the first step: nothing to save, run the same command again to go on");
      code = base::ExitCode::Retry;
    }
    while (code == base::ExitCode::Done && trainer().run_state().step < config_.train.steps) {
      interpret::RunOptions how;
      const int64_t next = trainer().run_state().step + 1;
      const bool draw = next == config_.log.timeline_step;
      const bool break_down = config_.log.breakdown_every > 0 && next % config_.log.breakdown_every == 0;
      how.timing = crew_.leads() && (draw || break_down);
      StepOutcome outcome = trainer().step(how);
      const int64_t step = trainer().run_state().step;
      if (start_laps_.empty()) note_start(progress);
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
      const bool evaluate = trainer().has_validation() &&
                            (last || (config_.train.eval_every > 0 && step % config_.train.eval_every == 0));
      std::optional<double> valid_loss;
      std::exception_ptr failed;
      if (evaluate) {
        try {
          const EvalOutcome eval = trainer().evaluate(config_.train.eval_batches);
          valid_loss = eval.loss;
          add_eval(outcome.record, eval);
          if (eval.all && last) final_eval_ = eval;
        } catch (...) {
          if (!crew_.alone()) throw;  // the others are elsewhere: no state can be gathered
          failed = std::current_exception();
        }
      }
      history_.note(outcome.record);
      if (failed) {  // what was trained is not lost with it
        save(progress, {});
        progress.message(fmt::format("the evaluation failed: saved step {} before the run stops", step));
        std::rethrow_exception(failed);
      }
      const int64_t every = config_.log.console_every;
      if (every > 0 && (step % every == 0 || last || outcome.record.eval))
        progress.step_done(outcome.record, steady_now());
      if (trainer().run_state().refused_in_row >= config_.train.max_refused_steps) {
        progress.message(fmt::format("{} in a row refused: stopping. Last: {}",
                                     base::counted(trainer().run_state().refused_in_row, "step"),
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
  Trainer& trainer() { return open_.trainer(); }

  // Of progress where lines are not rewritten: whoever asked for a number of steps gets them all.
  double seconds_between_lines() const {
    return open_.asked().asked.contains("log.console_every") ? 0.0 : 5.0;
  }

  // The first step is done: where the time went.
  void note_start(report::Progress& progress) {
    base::Laps laps = open_.laps();
    laps.done("first step");
    start_laps_ = laps.all();
    if (!options_.verbose) return;
    double sum = 0;
    std::string text;
    for (const auto& [what, seconds] : start_laps_) {
      sum += seconds;
      text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", what, seconds);
    }
    progress.message(fmt::format("{:.2f} s to the end of the first step: {}", sum, text));
  }

  // A signal may have reached one process only.
  bool stop_asked() const { return crew_.any("loop.stop", StopSignal::asked()); }

  static void add_eval(report::StepRecord& record, const EvalOutcome& eval) {
    record.eval =
        report::EvalRecord{eval.loss, eval.bits_per_byte > 0 ? eval.bits_per_byte : report::kUnknown};
  }

  void write_timeline() {
    open_.start().require_places();
    const interpret::Executor& e = trainer().programs().train();
    // Of this rank alone: the files of a run are the leader's.
    const runtime::RankSetup& setup = crew_.setup();
    const std::string of = crew_.alone()
                               ? ""
                               : fmt::format("rank {} of {}, pipeline stage {} of {}", setup.rank(),
                                             setup.world(), setup.role.pipeline_rank, setup.mesh.pp);
    base::replace_file(open_.path("timeline.json"), interpret::to_report_json(e.program(), e.timeline(), of));
    base::replace_file(open_.path("trace.json"), interpret::to_chrome_json(e.program(), e.timeline(), of));
  }

  void show_breakdown(report::StepRecord& record, report::Progress& progress) {
    const interpret::Executor& e = trainer().programs().train();
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
    open_.start().require_places();
    // A checkpoint must never be more durable than the log of the steps that led to it.
    history_.sync();
    if (crew_.leads()) base::make_folders(config_.checkpoint.dir);
    checkpoint::SaveResult result;
    try {
      result = trainer().save(open_.vfs(), config_.checkpoint.dir, o);
    } catch (const base::Error&) {
      open_.start().require_places();  // where that is why, it says more
      throw;
    }
    if (crew_.leads())
      for (const std::string& w : result.warnings) progress.message("checkpoint: " + w);
  }

  LoopResult finish(base::ExitCode code) {
    // After the last save, which must not wait for it.
    if (code == base::ExitCode::Done && !final_eval_ && trainer().has_validation()) {
      final_eval_ = trainer().evaluate(0, [this] { return stop_asked(); });
      if (final_eval_->stopped) {
        final_eval_.reset();
        if (!open_.quiet())
          fmt::print(
              stderr,
              "asked to stop: every step is trained; 'pleat eval {}' evaluates all of the validation data\n",
              config_.log.run_dir);
      }
    }
    LoopResult out;
    out.code = code;
    out.step = trainer().run_state().step;
    out.final_eval = final_eval_;
    out.state_sha256 = trainer().state_sha256();
    out.summary_path = open_.path("summary.json");
    if (!crew_.leads()) return out;

    nlohmann::json summary =
        run_summary(trainer(), history_, final_eval_, out.state_sha256, code, open_.vfs());
    for (const auto& [what, seconds] : start_laps_) summary["start_seconds"][what] = seconds;
    open_.start().require_places();
    base::replace_file(out.summary_path,
                       summary.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
    if (!open_.quiet()) say_goodbye(summary, trainer());
    return out;
  }

  const LoopOptions& options_;
  runtime::Crew& crew_;
  const double started_ = steady_now();
  OpenRun open_;
  const config::Config& config_;
  RunHistory history_;
  std::vector<base::Laps::Lap> start_laps_;  // until the end of this process's first step
  std::optional<EvalOutcome> final_eval_;
};

// What decides which calls a rank makes, and is no setting.
std::string asked_beside(const LoopOptions& options) {
  const auto yes_no = [](bool yes) { return yes ? "yes" : "no"; };
  return fmt::format("{} = {}\n--init = {}\nstop after step = {}\n", config::kAllowChange,
                     yes_no(options.allow_change), yes_no(bool(options.write_start)), options.stop_after);
}

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
      mine = Loop(asked, options, crew, carrier, std::move(start)).run();
    }
    // The first rank here: a process under MPI has one, threads give way to the leader.
    if (crew.leads() || options.ranks == 0) result = std::move(mine);
  };
  launch(config, options.ranks, one_rank,
         options.inject.empty() ? comm::Inject() : comm::inject(comm::parse_fault(options.inject)),
         asked_beside(options));
  return result;
}

}  // namespace pleat::train
