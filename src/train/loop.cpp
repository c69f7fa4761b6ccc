#include "train/loop.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/posix_vfs.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "comm/inject.h"
#include "data/byte_tokenizer.h"
#include "device/cpu/blas.h"
#include "kernels/cuda/choices.h"
#include "report/console.h"
#include "report/format.h"
#include "report/jsonl_log.h"
#include "report/table.h"
#include "report/tensorboard.h"
#include "report/time_shares.h"
#include "schedule/pass/freeze.h"
#include "train/bigram.h"
#include "train/generate.h"
#include "train/launch.h"
#include "train/matmul_choices.h"
#include "train/memory.h"
#include "train/run_tokenizer.h"
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

void write_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  {
    std::ofstream out(temporary, std::ios::binary);
    out << text;
    if (!out.flush()) base::fail_with(base::ExitCode::Storage, "cannot write '{}'", path);
  }
  fs::rename(temporary, path);
}

// The pieces a run writes to, opened in the right place after resume is settled.
class Run {
 public:
  // `carrier` says what the ranks are, for people.
  Run(const config::Config& config, const LoopOptions& options, Crew& crew, std::string carrier)
      : options_(options),
        crew_(crew),
        carrier_(std::move(carrier)),
        asked_(prepared(config, options.quiet, crew)),
        config_(config::resolve(asked_)),
        start_(find_start()),
        choices_line_(take_choices()),
        trainer_(config_, choice(), hooks(), &crew) {
    if (!crew_.leads()) options_.quiet = true;
    if (crew_.leads()) fs::create_directories(config_.log.run_dir);
    if (!options_.quiet) announce();
    resume();
    if (!crew_.leads()) return;
    log_.emplace(trainer_.run_state().step > 0
                     ? report::JsonlLog::resumed(path("metrics.jsonl"), trainer_.run_state().step)
                     : fresh_log());
    for (const std::string& fault : log_->faults()) fmt::print(stderr, "{}\n", fault);
    if (config_.log.tensorboard) tensorboard_.emplace(path("tensorboard"), trainer_.run_state().step);
    if (trainer_.run_state().step > 0) recall();
    save_resolved();
    if (trainer_.programs().machine()) write_file(path(kMatmulChoicesFile), to_json(current_choices()));
  }

  LoopResult run() {
    const double start = steady_now();
    report::Progress progress(config_.train.steps, report::Progress::mode_of_stderr(),
                              options_.quiet ? [](std::string_view) {} : report::Progress::to_stderr(), 5.0,
                              report::terminal_width());
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
      const bool evaluate = trainer_.has_validation() && !last && config_.train.eval_every > 0 &&
                            step % config_.train.eval_every == 0;
      if (evaluate) add_eval(outcome.record, trainer_.evaluate(config_.train.eval_batches));
      if (last && trainer_.has_validation() && config_.train.eval_batches > 0) {
        final_eval_ = trainer_.evaluate(0);
        add_eval(outcome.record, *final_eval_);
      }
      note(outcome.record);
      const int64_t every = config_.log.console_every;
      if (every > 0 && (step % every == 0 || last || outcome.record.eval))
        progress.step_done(outcome.record, steady_now());
      if (trainer_.run_state().refused_in_row >= config_.train.max_refused_steps) {
        progress.message(fmt::format("{} steps in a row refused: stopping. Last: {}",
                                     trainer_.run_state().refused_in_row, outcome.culprit));
        code = base::ExitCode::Numerical;
        break;
      }
      const bool stop = (stop_asked() || step == options_.stop_after) && !last;
      const bool due = config_.checkpoint.every > 0 && step % config_.checkpoint.every == 0;
      if (due || stop || (last && config_.checkpoint.save_at_end)) save(progress);
      if (stop) {
        progress.message(
            fmt::format("asked to stop: saved step {}, run the same command again to go on", step));
        code = base::ExitCode::Retry;
        break;
      }
    }
    progress.finish();
    return finish(code, steady_now() - start);
  }

 private:
  // Text becomes a dataset once; whoever comes later finds it.
  static config::Config prepared(const config::Config& config, bool quiet, const Crew& crew) {
    config::Config out;
    if (crew.leads()) out = with_prepared_data(config, quiet);
    crew.wait_for_all("start.data");
    return crew.leads() ? out : with_prepared_data(config, true);
  }

  ProgramChoice choice() const {
    ProgramChoice c;
    c.logits = crew_.alone();
    return c;
  }

  // A signal may have reached one process only.
  bool stop_asked() const { return crew_.any("loop.stop", StopSignal::asked()); }

  TrainerHooks hooks() const {
    TrainerHooks h;
    if (options_.fault_step)
      h.before_run = [step = *options_.fault_step](int64_t now, interpret::Executor& e) {
        if (now == step) static_cast<double*>(e.data("norm"))[0] = std::numeric_limits<double>::quiet_NaN();
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

  void announce() {
    const model::ParameterCount count = model::count_parameters(config_, trainer_.programs().table());
    const interpret::Plan& plan = trainer_.programs().train_plan().plan;
    fmt::print(stderr,
               "{} parameters, {} active per token; arena {}; GEMM rate {:.1f} GFLOP/s on {} threads ({})\n",
               report::format_count(double(count.total)), report::format_count(double(count.active)),
               report::format_bytes(double(plan.arena_bytes)), trainer_.gemm_rate() / 1e9,
               crew_.num_threads() * crew_.setup().world(), device::blas_description());
    if (!crew_.alone()) {
      const model::Mesh& m = crew_.setup().mesh;
      fmt::print(
          stderr,
          "{} ranks ({}), {} threads each: attention tp {} x cp {} x dp {} x pp {}, experts etp {} x ep {} "
          "x edp {} x pp {}; arena and products are those of rank 0{}\n",
          m.world(), carrier_, crew_.num_threads(), m.tp, m.cp, m.dp, m.pp, m.etp, m.ep, m.edp, m.pp,
          config_.device.kind == "cuda" ? "; steps run stage by stage, not as a graph (device.graph)" : "");
    }
    report::Table table({{"key"}, {"asked"}, {"used"}, {"why"}});
    // What was set or derived; the rest is in the run's config.toml.
    for (const config::ResolvedRow& row : config::resolved(asked_))
      if (row.why != "default" && !row.why.starts_with("not used"))
        table.add_row({row.key, row.asked, row.used, row.why});
    fmt::print(stderr, "{}", table.text());
    for (size_t i = 0; i < trainer_.train_data().num_sources(); ++i)
      if (const data::WholeDocuments* whole = trainer_.train_data().sampler(i).whole_documents())
        fmt::print(stderr, "{}: {}\n", trainer_.train_data().dataset(i).prefix(), whole->text());
    announce_classes();
    if (!choices_line_.empty()) fmt::print(stderr, "gpu: {}\n", choices_line_);
    for (const std::string& line : kernels::cuda_choices()) fmt::print(stderr, "gpu: {}\n", line);
    for (const std::string& remark : config_.notes) fmt::print(stderr, "note: {}\n", remark);
  }

  // What is trained, by class.
  void announce_classes() {
    std::map<std::string, std::pair<int64_t, int64_t>> classes;  // tensors, numbers
    std::map<std::string, bool> frozen;
    int64_t trained = 0, total = 0;
    for (const model::Parameter& p : trainer_.programs().table()) {
      if (!p.tied_to.empty()) continue;
      const std::string name = model::name_of(p.parameter_class);
      const int64_t n = model::num_elements(p);
      classes[name].first += 1;
      classes[name].second += n;
      frozen[name] = schedule::is_frozen(config_, p);
      total += n;
      trained += frozen[name] ? 0 : n;
    }
    report::Table table({{"class"},
                         {"tensors", report::Align::Right},
                         {"parameters", report::Align::Right},
                         {"trainable", report::Align::Right},
                         {"lr", report::Align::Right}});
    int64_t tensors = 0;
    for (const auto& [name, count] : classes) {
      const auto group = config_.optimizer.groups.find(name);
      const double mult = group == config_.optimizer.groups.end() ? 1.0 : group->second.lr_mult;
      table.add_row({name, std::to_string(count.first), std::to_string(count.second),
                     frozen[name] ? "frozen" : std::to_string(count.second),
                     frozen[name] ? "-" : fmt::format("x {:g}", mult)});
      tensors += count.first;
    }
    table.add_rule();
    table.add_row({"all", std::to_string(tensors), std::to_string(total), std::to_string(trained), ""});
    fmt::print(stderr, "{}", table.text());
  }

  // What the run goes on from; nothing: it starts anew. Found before the trainer is made, which binds
  // products by the algorithms kept in there.
  std::optional<checkpoint::Loaded> find_start() {
    if (config_.checkpoint.resume == "never") {
      std::error_code ignored;
      if (crew_.leads() && fs::exists(config_.checkpoint.dir, ignored) &&
          !fs::is_empty(config_.checkpoint.dir, ignored))
        base::fail(
            "checkpoint.resume = \"never\", but '{}' already holds checkpoints: choose another log.run_dir, "
            "or remove them",
            config_.checkpoint.dir);
      return {};
    }
    std::optional<checkpoint::Loaded> newest = find_newest();
    if (!newest && config_.checkpoint.resume == "must")
      base::fail("checkpoint.resume = \"must\", but '{}' holds no checkpoint that verifies",
                 config_.checkpoint.dir);
    return newest;
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
    if (start_ && start_->manifest().texts.contains(kMatmulChoices))
      text = start_->text(kMatmulChoices), where = start_->path();
    else if (vfs_.stat(file))
      text = base::read_file(vfs_, file, kMaxMatmulChoicesBytes), where = file;
    else if (where = config_.device.matmul_choices; !where.empty())
      text = base::read_file(vfs_, where, kMaxMatmulChoicesBytes), asked = true;
    else
      return {};
    TakenChoices taken = take(choices_from_json(text, where), matmul_machine(), where);
    if (asked && taken.use.empty()) base::fail("device.matmul_choices: {}", taken.line);
    kernels::use_matmul_choices(taken.use);
    return taken.line;
  }

  void resume() {
    if (!start_) return;
    const std::vector<std::string> differences = trainer_.restore(*start_);
    if (options_.quiet) return;
    fmt::print(stderr, "resumed from {}: step {}, {} tensors, data position, counters\n", start_->path(),
               start_->step(), start_->manifest().tensors.size());
    for (const std::string& d : differences) fmt::print(stderr, "  differs from the saved run: {}\n", d);
  }

  // The leader reads and verifies all of it; the others then read what they need.
  std::optional<checkpoint::Loaded> find_newest() {
    std::optional<checkpoint::Loaded> newest;
    int64_t step = -1;
    if (crew_.leads()) {
      checkpoint::Found found = checkpoint::find_newest(vfs_, config_.checkpoint.dir);
      for (const checkpoint::Skipped& s : found.skipped)
        fmt::print(stderr, "checkpoint {} passed over: {}\n", s.name, s.reason);
      newest = std::move(found.newest);
      if (newest) step = newest->step();
    }
    crew_.tell("start.resume", std::span(&step, 1));
    if (!crew_.leads() && step >= 0) newest = checkpoint::open_step(vfs_, config_.checkpoint.dir, step);
    return newest;
  }

  // What the summary says about the whole run, from the part of the log that survived the stop.
  void recall() {
    report::for_each_record(path("metrics.jsonl"), [&](const report::StepRecord& record) {
      last_loss_ = record.loss;
      if (record.eval) note_eval(*record.eval);
    });
  }

  void note_eval(const report::EvalRecord& eval) {
    if (best_eval_ == 0 || eval.loss < best_eval_) best_eval_ = eval.loss;
  }

  void save_resolved() const {
    std::string text = config::to_toml(config_) + "\n# asked / used / why\n";
    for (const config::ResolvedRow& row : config::resolved(asked_))
      text += fmt::format("# {} = {} (asked: {}){}{}\n", row.key, row.used, row.asked,
                          row.why.empty() ? "" : ", ", row.why);
    write_file(path("config.toml"), text);
  }

  static void add_eval(report::StepRecord& record, const EvalOutcome& eval) {
    record.eval =
        report::EvalRecord{eval.loss, eval.bits_per_byte > 0 ? eval.bits_per_byte : report::kUnknown};
  }

  void note(report::StepRecord& record) {
    if (record.eval) note_eval(*record.eval);
    last_loss_ = record.loss;
    train_seconds_ += record.step_seconds;
    steps_here_ += 1;
    if (!crew_.leads()) return;
    report::StepRecord logged = record;
    if (config_.log.health_every > 0 && record.step % config_.log.health_every != 0 &&
        record.step != config_.train.steps)
      logged.health.clear();
    log_->append(logged);
    if (tensorboard_) tensorboard_->append(logged, wall_now());
  }

  void write_timeline() {
    const interpret::Executor& e = trainer_.programs().train();
    write_file(path("timeline.json"), interpret::to_report_json(e.program(), e.timeline()));
    write_file(path("trace.json"), interpret::to_chrome_json(e.program(), e.timeline()));
  }

  void show_breakdown(report::StepRecord& record, report::Progress& progress) {
    const interpret::Executor& e = trainer_.programs().train();
    const auto classes = step_breakdown(interpret::breakdown(e.program(), e.timeline()), record.step_seconds);
    for (const auto& [name, seconds] : classes) record.breakdown[name] = 1e3 * seconds;
    std::string text = report::time_shares(fmt::format("step {}", record.step), classes, record.step_seconds);
    text.pop_back();  // a message ends its own line
    progress.message(text);
  }

  void save(report::Progress& progress) {
    checkpoint::SaveOptions o;
    o.keep = config_.checkpoint.keep;
    trainer_.with_state([&](const checkpoint::StateView& state) {
      fs::create_directories(config_.checkpoint.dir);
      const checkpoint::SaveResult result = checkpoint::save(vfs_, config_.checkpoint.dir, state, o);
      for (const std::string& w : result.warnings) progress.message("checkpoint: " + w);
    });
  }

  LoopResult finish(base::ExitCode code, double seconds) {
    // A run that was over before it was started again still tells how it ended.
    if (code == base::ExitCode::Done && !final_eval_ && trainer_.has_validation())
      final_eval_ = trainer_.evaluate(0);
    LoopResult out;
    out.code = code;
    out.step = trainer_.run_state().step;
    out.final_eval = final_eval_;
    out.state_sha256 = trainer_.state_sha256();
    out.summary_path = path("summary.json");
    if (!crew_.leads()) return out;

    const Planned& planned = trainer_.programs().train_plan();
    const device::Arena& arena = trainer_.programs().arena();
    const int64_t measured = arena.end_of_changes();
    const ProcessMemory memory = process_memory();
    json owners = json::object();
    for (size_t i = 0; i < planned.plan.at_peak.size(); ++i)
      owners[std::string(program::name_of(static_cast<program::Owner>(i)))] = planned.plan.at_peak[i];
    const double rate = steps_here_ > 0 ? double(steps_here_) / train_seconds_ : 0;
    json summary = {{"run", config_.log.run_dir},
                    {"ranks", crew_.setup().world()},
                    {"config", config::to_toml(config_)},
                    {"steps", out.step},
                    {"final_loss", last_loss_},
                    {"tokens", out.step * trainer_.tokens_per_step()},
                    {"tokens_per_s", rate * double(trainer_.tokens_per_step())},
                    {"model_tflops", rate * trainer_.model_flops_per_step() / 1e12},
                    {"hardware_tflops", rate * trainer_.hardware_flops_per_step() / 1e12},
                    {"gemm_peak_tflops", trainer_.gemm_rate() / 1e12},
                    {"planned_peak_bytes", arena.size()},
                    {"measured_peak_bytes", measured},
                    {"live_peak_bytes", planned.plan.live_peak_bytes},
                    {"outside_bytes", std::max<int64_t>(0, memory.anonymous_bytes - arena.size())},
                    {"large_allocations_in_steps",
                     trainer_.allocations().available ? json(trainer_.allocations().large) : json(nullptr)},
                    {"memory_by_owner", owners},
                    {"blas", device::blas_description()},
                    {"state_sha256", out.state_sha256},
                    {"refused_steps", trainer_.run_state().refused_total},
                    {"wall_seconds", seconds},
                    {"exit_code", static_cast<int>(code)}};
    if (best_eval_ > 0) summary["best_eval_loss"] = best_eval_;
    if (final_eval_ && final_eval_->bits_per_byte > 0) {
      summary["bits_per_byte"] = final_eval_->bits_per_byte;
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
    write_file(out.summary_path, summary.dump(1, ' ', false, json::error_handler_t::replace));
    if (!options_.quiet) say_goodbye(summary);
    return out;
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
    GenerateOptions o;
    o.max_tokens = 240;
    o.seed = config_.train.seed;
    if (tokenizer->has_end_of_document()) o.stop_tokens = {tokenizer->end_of_document()};
    const std::string prompt = "The ";
    return prompt + tokenizer->decode(generate(trainer_.programs(), tokenizer->encode(prompt), o),
                                      {.skip_special_tokens = true, .skip_unknown_ids = true});
  }

  void say_goodbye(const json& s) const {
    const auto bytes = [&](const char* key) { return report::format_bytes(s.at(key).get<double>()); };
    fmt::print(
        stderr,
        "memory: planned {} ({} bytes), measured {} ({} bytes); outside the arena {}; {} allocations >= 4 "
        "KiB inside steps\n",
        bytes("planned_peak_bytes"), s.at("planned_peak_bytes").get<int64_t>(), bytes("measured_peak_bytes"),
        s.at("measured_peak_bytes").get<int64_t>(), bytes("outside_bytes"),
        s.at("large_allocations_in_steps").is_null() ? "unknown" : s.at("large_allocations_in_steps").dump());
    fmt::print(
        stderr,
        "speed: {}, {:.4f} model TFLOP/s, {:.4f} hardware TFLOP/s, {:.1f} % of the measured GEMM rate\n",
        report::format_token_rate(s.at("tokens_per_s").get<double>()), s.at("model_tflops").get<double>(),
        s.at("hardware_tflops").get<double>(),
        100 * s.at("hardware_tflops").get<double>() / s.at("gemm_peak_tflops").get<double>());
    if (s.contains("bits_per_byte")) {
      const double ours = s.at("bits_per_byte").get<double>();
      fmt::print(stderr, "validation: {:.4f} bits per byte", ours);
      if (s.contains("bigram_bits_per_byte")) {
        const double bigram = s.at("bigram_bits_per_byte").get<double>();
        fmt::print(stderr, "; byte bigram on the same split: {:.4f} ({:.1f} % lower)", bigram,
                   100 * (1 - ours / bigram));
      }
      fmt::print(stderr, "\n");
    }
    if (!config_.data.sources.empty()) {
      report::Table table({{"source"},
                           {"share asked", report::Align::Right},
                           {"tokens", report::Align::Right},
                           {"epochs", report::Align::Right}});
      for (const Trainer::SourceUse& use : trainer_.source_uses())
        table.add_row({use.prefix, fmt::format("{:.2f} %", 100 * use.weight),
                       report::format_count(double(use.tokens)), fmt::format("{:.3f}", use.epochs)});
      fmt::print(stderr, "{}", table.text());
    }
    if (s.contains("sample")) fmt::print(stderr, "sample:\n{}\n", s.at("sample").get<std::string>());
    fmt::print(stderr, "state sha256 {}\n", s.at("state_sha256").get<std::string>());
  }

  LoopOptions options_;
  Crew& crew_;
  const std::string carrier_;
  config::Config asked_, config_;
  base::PosixVfs vfs_;
  std::optional<checkpoint::Loaded> start_;
  const std::string choices_line_;
  Trainer trainer_;
  std::optional<report::JsonlLog> log_;
  std::optional<report::TensorBoardWriter> tensorboard_;
  std::optional<EvalOutcome> final_eval_;
  double best_eval_ = 0, last_loss_ = 0, train_seconds_ = 0;
  int64_t steps_here_ = 0;
};

}  // namespace

LoopResult run_training(const config::Config& config, const LoopOptions& options) {
  const StopSignal signal;  // first: a request during start-up counts as well
  LoopResult result;
  const RankMain one_rank = [&](const config::Config& asked, Crew& crew, const std::string& carrier) {
    LoopResult mine = Run(asked, options, crew, carrier).run();
    // The first rank here: a process under MPI has one, threads give way to the leader.
    if (crew.leads() || options.ranks == 0) result = std::move(mine);
  };
  launch(config, options.ranks, one_rank,
         options.inject.empty() ? comm::Inject() : comm::inject(comm::parse_fault(options.inject)));
  return result;
}

}  // namespace pleat::train
