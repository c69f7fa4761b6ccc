#include "train/start.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/replace_file.h"
#include "checkpoint/choose.h"
#include "checkpoint/directory.h"
#include "config/run_files.h"
#include "config/schema.h"
#include "train/run_tokenizer.h"
#include "train/trainer.h"

namespace pleat::train {
namespace {

namespace fs = std::filesystem;

bool has_checkpoints(base::Vfs& vfs, const std::string& directory) {
  return vfs.stat(directory) && !checkpoint::list_checkpoints(vfs, directory).steps.empty();
}

std::optional<checkpoint::Loaded> find_start(base::Vfs& vfs, const config::Config& used) {
  const std::string& directory = used.checkpoint.dir;
  if (used.checkpoint.resume == "never") {
    if (has_checkpoints(vfs, directory))
      base::fail(
          "checkpoint.resume = \"never\", but '{}' already holds checkpoints: choose another log.run_dir, or "
          "remove them",
          directory);
    return {};
  }
  std::optional<checkpoint::Chosen> chosen = checkpoint::choose_if_any(vfs, directory);
  if (!chosen) {
    if (used.checkpoint.resume == "must")
      base::fail("checkpoint.resume = \"must\", but '{}' holds no checkpoint", directory);
    return {};
  }
  for (const checkpoint::Skipped& s : chosen->skipped)
    fmt::print(stderr, "checkpoint {} passed over: {}\n", s.name, s.reason);
  return std::move(chosen->loaded);
}

void judge_changes(const config::Config& asked, const checkpoint::Loaded& from, const LoopOptions& options) {
  // Weights that have not been trained yet bind nothing but the model; a run of 0.1.0 kept no word of what it
  // was asked.
  std::error_code ignored;
  const std::string& folder = asked.log.run_dir;
  if (options.allow_change || is_unseen(from) || !fs::exists(folder + "/" + config::kAskedName, ignored))
    return;
  const std::vector<std::string> lines =
      changes_that_need_the_flag(config::read_unchecked(folder, {}), asked);
  if (!lines.empty())
    base::fail(
        "'{}' was asked for other settings before (before -> now):\n  {}\nThey change how it trains. {} goes "
        "on with the new ones; another log.run_dir makes a new run",
        folder, fmt::join(lines, "\n  "), config::kAllowChange);
}

// Settings that are refused on the way must not end as "already done".
bool asks_for_another_run(const config::Config& asked) {
  std::error_code ignored;
  if (!fs::exists(asked.log.run_dir + "/" + config::kAskedName, ignored)) return false;
  for (const config::Change& change : config::changes(config::read_unchecked(asked.log.run_dir, {}), asked)) {
    const config::OnResume rule = *change.key->resume;
    if (asked.asked.contains(change.key->path) &&
        (rule == config::OnResume::SameModel || rule == config::OnResume::Never))
      return true;
  }
  return false;
}

// Checkpoints outside the run folder do not move with it: RUN in there names the run they belong to.
std::string owner_file(const config::Config& used) {
  const std::string named = config::in_folder(used, used.log.run_dir).checkpoint.dir;
  return fs::path(named).is_absolute() ? named + "/RUN" : "";
}

void require_own_checkpoints(const config::Config& used) {
  const std::string path = owner_file(used);
  std::ifstream in(path);
  std::string owner;
  std::error_code ignored;
  if (path.empty() || !std::getline(in, owner) || fs::equivalent(owner, used.log.run_dir, ignored) ||
      !fs::exists(owner + "/" + config::kAskedName, ignored))
    return;
  base::fail(
      "the checkpoints in '{}' belong to the run in '{}'; --set checkpoint.dir=... gives this run its own "
      "(copy the checkpoints there to go on from them)",
      used.checkpoint.dir, owner);
}

void own_checkpoints(const config::Config& used) {
  const std::string path = owner_file(used);
  if (path.empty()) return;
  fs::create_directories(used.checkpoint.dir);
  base::replace_file(path, fs::weakly_canonical(fs::absolute(used.log.run_dir)).string() + "\n");
}

// What the summary says, where it is of the run's last step.
std::optional<LoopResult> finished(const std::string& folder, int64_t step) {
  const std::string path = folder + "/summary.json";
  std::ifstream in(path);
  if (!in) return {};
  const nlohmann::json summary = nlohmann::json::parse(in, nullptr, false);
  if (!summary.is_object() || summary.value("exit_code", -1) != 0 ||
      summary.value("steps", int64_t{-1}) != step)
    return {};
  LoopResult out;
  out.step = step;
  out.state_sha256 = summary.value("state_sha256", "");
  out.summary_path = path;
  return out;
}

}  // namespace

std::vector<std::string> changes_that_need_the_flag(const config::Config& before, const config::Config& now) {
  std::vector<std::string> out;
  for (const config::Change& change : config::changes(before, now)) {
    // What nobody asked for was derived.
    if (!before.asked.contains(change.key->path) && !now.asked.contains(change.key->path)) continue;
    const config::OnResume rule = *change.key->resume;
    const auto number = [&](const config::Config& c) {
      const config::Value value = change.key->get(c);
      const auto* integer = std::get_if<int64_t>(&value);
      return integer ? double(*integer) : std::get<double>(value);
    };
    if (rule == config::OnResume::WithFlag ||
        (rule == config::OnResume::MayGrow && number(now) < number(before)))
      out.push_back(change.text());
  }
  return out;
}

Start begin(const config::Config& asked, const LoopOptions& options, const Crew& crew) {
  Start out;
  out.vfs = std::make_unique<base::PosixVfs>();
  const config::Config used = config::resolve(asked);
  int64_t found[2] = {-1, 0};  // step of the checkpoint, whether the run is done
  if (crew.leads()) {
    if (options.lock) out.lock.emplace(run::Lock::take(asked.log.run_dir));
    require_own_checkpoints(used);
    if (options.write_start && !has_checkpoints(*out.vfs, used.checkpoint.dir)) {
      if (out.lock) out.lock->sign();
      options.write_start(config::resolve(with_vocabulary(asked)));
    }
    out.from = find_start(*out.vfs, used);
    if (out.from) {
      judge_changes(asked, *out.from, options);
      found[0] = out.from->step();
      if (found[0] >= asked.train.steps && !asks_for_another_run(asked))
        out.done = finished(asked.log.run_dir, found[0]);
      found[1] = out.done.has_value();
    }
    if (out.lock && !out.done) out.lock->sign();
    if (!out.done) own_checkpoints(used);
  }
  crew.tell("start.resume", std::span(found));
  if (!crew.leads() && found[1]) out.done.emplace().step = found[0];
  if (!crew.leads() && found[0] >= 0)
    out.from = checkpoint::open_step(*out.vfs, used.checkpoint.dir, found[0]);
  return out;
}

}  // namespace pleat::train
