#include "train/open_run.h"

#include <filesystem>
#include <limits>

#include "base/make_folders.h"
#include "checkpoint/retain.h"
#include "checkpoint/shared_folder.h"
#include "config/run_files.h"
#include "run/leftovers.h"
#include "run/origin.h"
#include "train/announce.h"
#include "train/checkpoint_owner.h"
#include "train/crew_peers.h"
#include "train/run_choices.h"
#include "train/run_tokenizer.h"
#include "train/verify_together.h"

namespace pleat::train {

namespace fs = std::filesystem;

OpenRun::OpenRun(const config::Config& asked, const LoopOptions& options, runtime::Crew& crew,
                 const std::string& carrier, Start start)
    : options_(options),
      crew_(crew),
      quiet_(options.quiet || !crew.leads()),
      start_(std::move(start)),
      in_use_(names_in_use(config::resolve(asked))),
      tokenizer_(asked, keeps_its_data(), in_use_),
      named_(with_tokenizer(asked, tokenizer_.name())),
      asked_(prepared()),
      config_(config::resolve(asked_)),
      choices_line_(take_choices(config_, start_, crew)),
      trainer_(config_, choice(), hooks(), &crew) {
  laps_.take(trainer_.laps());
  if (!quiet_) announce(named_, trainer_, carrier, options_.verbose);
  if (!quiet_ && !choices_line_.empty()) fmt::print(stderr, "gpu: {}\n", choices_line_);
  if (start_.from) resume();
  accept();
  if (!start_.from) require_shared();
  if (!start_.from && options_.write_start) begin_from_weights();
  if (crew_.leads()) {
    start_.require_places();
    if (trainer_.programs().machine())
      if (const std::string line = keep_choices(config_); !line.empty() && !quiet_)
        fmt::print(stderr, "gpu: {}\n", line);
  }
  tidy();
  laps_.done("files of the run");
}

// What a run has been trained on stays as it is.
bool OpenRun::keeps_its_data() const {
  return start_.from && !is_unseen(*start_.from) && !options_.allow_change;
}

// Text becomes a dataset once. The leader writes; whoever comes later finds it.
config::Config OpenRun::prepared() {
  if (crew_.leads() && !quiet_ && !tokenizer_.note().empty())
    fmt::print(stderr, "note: {}\n", tokenizer_.note());
  PreparedData how;
  how.quiet = quiet_;
  how.in_use = in_use_;
  how.tokenizer_name = tokenizer_.name();
  how.before_writing = [this] { sign(); };
  if (keeps_its_data())
    how.trained_with = config::placed(config::parse_record(start_.from->text("config")), named_.log.run_dir);
  const config::Config named = with_tokenizer(named_, tokenizer_.read_from());
  config::Config out;
  if (crew_.leads()) out = with_prepared_data(named, how);
  crew_.wait_for_all("start.data");
  laps_.done("text to tokens");
  how.quiet = true;
  if (!crew_.leads()) out = with_prepared_data(named, how);
  return with_tokenizer(out, tokenizer_.name());
}

void OpenRun::sign() {
  const bool first = start_.lock && !start_.is_signed;
  start_.sign();
  if (first) run::remove_leftovers(named_.log.run_dir + "/data");
}

// Nothing is left that could refuse the run: what it uses becomes its own. In this order, so that after a stop
// at any moment asked.toml, config.toml and what they name belong together.
void OpenRun::accept() {
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

// Ranks that have verified a checkpoint together have shown it.
void OpenRun::require_shared() {
  if (crew_.alone()) return;
  if (crew_.leads()) base::make_folders(config_.checkpoint.dir);
  CrewPeers peers(crew_, "start.folder");
  checkpoint::require_shared(vfs(), config_.checkpoint.dir, peers);
}

void OpenRun::begin_from_weights() {
  if (crew_.leads()) options_.write_start(config_);
  crew_.wait_for_all("start.weights");
  start_.from = checkpoint::open_step(vfs(), config_.checkpoint.dir, 0);
  resume();
}

runtime::ProgramChoice OpenRun::choice() const {
  runtime::ProgramChoice c;
  c.logits = crew_.alone();
  if (config_.device.kind == "cuda" && crew_.meeting(comm::Buffers::Device) == program::Meeting::OnDevice)
    c.bind_in_turn = [this](const std::function<void()>& bind) { bind_with_one_choice(crew_, bind); };
  return c;
}

TrainerHooks OpenRun::hooks() const {
  TrainerHooks h;
  if (options_.fault_step)
    h.before_run = [step = *options_.fault_step](int64_t now, interpret::Executor& e) {
      if (now == step) e.at(program::step::norm)[0] = std::numeric_limits<double>::quiet_NaN();
    };
  return h;
}

void OpenRun::resume() {
  const checkpoint::Loaded& from = *start_.from;
  const std::vector<std::string> differences = trainer_.restore(
      from, options_.allow_change ? Trainer::OtherData::Allowed : Trainer::OtherData::Refused);
  if (quiet_) return;
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
void OpenRun::tidy() {
  if (!start_.from) return;
  std::vector<std::string> warnings;
  verify_together(crew_, vfs(), [&](const checkpoint::Verify& verify) {
    checkpoint::tidy(vfs(), config_.checkpoint.dir, start_.from->step(), config_.checkpoint.keep, warnings,
                     verify);
  });
  if (!quiet_)
    for (const std::string& w : warnings) fmt::print(stderr, "checkpoint: {}\n", w);
}

}  // namespace pleat::train
