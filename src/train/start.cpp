#include "train/start.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/regular_file.h"
#include "checkpoint/choose.h"
#include "checkpoint/directory.h"
#include "config/run_files.h"
#include "config/schema.h"
#include "run/origin.h"
#include "train/checkpoint_owner.h"
#include "train/trainer.h"
#include "train/verify_together.h"

namespace pleat::train {
namespace {

namespace fs = std::filesystem;

bool has_checkpoints(base::Vfs& vfs, const std::string& directory) {
  return vfs.stat(directory) && !checkpoint::list_checkpoints(vfs, directory).steps.empty();
}

std::optional<checkpoint::Loaded> find_start(base::Vfs& vfs, const config::Config& used, bool from_weights,
                                             const checkpoint::Verify& verify) {
  const std::string& directory = used.checkpoint.dir;
  if (used.checkpoint.resume == "never") {
    if (has_checkpoints(vfs, directory))
      base::fail(
          "checkpoint.resume = \"never\", but '{}' already holds checkpoints: choose another log.run_dir, or "
          "remove them",
          directory);
    return {};
  }
  std::optional<checkpoint::Chosen> chosen = checkpoint::choose_if_any(vfs, directory, {}, verify);
  if (!chosen) {
    if (used.checkpoint.resume == "must" && !from_weights)
      base::fail("checkpoint.resume = \"must\", but '{}' holds no checkpoint", directory);
    return {};
  }
  for (const checkpoint::Skipped& s : chosen->skipped)
    fmt::print(stderr, "checkpoint {} passed over: {}\n", s.name, s.reason);
  return std::move(chosen->loaded);
}

// What the run was asked before. A run of 0.1.0 kept no word of it.
std::optional<config::Config> asked_before(const std::string& folder) {
  std::error_code ignored;
  if (!fs::exists(folder + "/" + config::kAskedName, ignored)) return {};
  return config::read_unchecked(folder, {});
}

void judge_changes(const config::Config& asked, const Start& start, const LoopOptions& options) {
  // Weights that have not been trained yet bind nothing but the model.
  if (options.allow_change || is_unseen(*start.from) || !start.before) return;
  const std::vector<std::string> lines = changes_that_need_the_flag(*start.before, asked);
  if (!lines.empty())
    base::fail(
        "'{}' was asked for other settings before (before -> now):\n  {}\nThey change how it trains. {} goes "
        "on with the new ones; another log.run_dir makes a new run",
        asked.log.run_dir, fmt::join(lines, "\n  "), config::kAllowChange);
}

// Settings that are refused on the way must not end as "already done".
bool asks_for_another_run(const config::Config& asked, const std::optional<config::Config>& before) {
  if (!before) return false;
  for (const config::Change& change : config::changes(*before, asked)) {
    const config::OnResume rule = *change.key->resume;
    if (asked.asked.contains(change.key->path) &&
        (rule == config::OnResume::SameModel || rule == config::OnResume::Never))
      return true;
  }
  return false;
}

// A start from weights was stopped before they were written: without them it would begin with random ones.
void require_weights(const std::string& folder) {
  const std::optional<run::Origin> origin = run::read_origin(folder);
  if (!origin) return;
  base::fail(
      "'{}' was to start from the weights of {}, but was stopped before it had them; give --init {} again, "
      "or "
      "choose another log.run_dir",
      folder, origin->text(), origin->path);
}

// Alone in the run folder, and in that of its checkpoints where it lies elsewhere or another run has used it.
void settle_places(const config::Config& used, bool lock, Start& out) {
  const std::string &folder = used.log.run_dir, &checkpoints = used.checkpoint.dir;
  if (lock) {
    out.lock.emplace(run::Lock::take(folder));
    out.places.emplace_back(folder, run::kRunKey);
  }
  const bool outside = checkpoints_lie_outside(used);
  if (!lock) {
    run::require_lock_is_file(folder);
    run::require_lock_is_file(checkpoints);
  }
  std::error_code ignored;
  // Also a link that leads nowhere: it is refused.
  if (lock && (outside || (!fs::equivalent(checkpoints, folder, ignored) &&
                           fs::symlink_status(fs::path(checkpoints) / run::kLockName, ignored).type() !=
                               fs::file_type::not_found))) {
    out.checkpoint_lock.emplace(run::Lock::take(checkpoints, run::kCheckpointKey));
    out.places.emplace_back(checkpoints, run::kCheckpointKey);
  }
  require_own_checkpoints(used);
}

// What the summary says, where it is of the run's last step.
std::optional<LoopResult> finished(const std::string& folder, int64_t step) {
  const std::string path = folder + "/summary.json";
  base::require_regular(path);
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

std::vector<std::string> asked_otherwise(const config::Config& before, const config::Config& now) {
  std::vector<std::string> out;
  const std::string& folder = now.log.run_dir;
  for (const config::Change& change :
       config::changes(config::in_folder(before, folder), config::in_folder(now, folder)))
    if (before.asked.contains(change.key->path) || now.asked.contains(change.key->path))
      out.push_back(change.text());
  return out;
}

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

void Start::sign() {
  if (!lock || std::exchange(is_signed, true)) return;
  lock->sign();
  if (checkpoint_lock) checkpoint_lock->sign();
}

void Start::require_places() const {
  for (const run::Place& place : places) place.require_unmoved();
  if (lock) lock->require_kept();
  if (checkpoint_lock) checkpoint_lock->require_kept();
}

Start begin(const config::Config& asked, const LoopOptions& options, const runtime::Crew& crew) {
  Start out;
  out.vfs = std::make_unique<base::PosixVfs>();
  const config::Config used = config::resolve(asked);
  // Before there is a folder and data is prepared. Between GPUs it is asked once they have been entered.
  if (used.device.kind == "cpu" && used.parallel.exchange == "windows")
    crew.row_exchange(comm::Buffers::Host, true);
  int64_t found[2] = {-1, 0};  // step of the checkpoint, whether the run is done
  if (crew.leads()) {
    settle_places(used, options.lock, out);
    out.before = asked_before(asked.log.run_dir);
  }
  verify_together(crew, *out.vfs, [&](const checkpoint::Verify& verify) {
    out.from = find_start(*out.vfs, used, bool(options.write_start), verify);
  });
  if (crew.leads()) {
    if (!out.from && !options.write_start && out.before) require_weights(asked.log.run_dir);
    if (out.from) {
      judge_changes(asked, out, options);
      found[0] = out.from->step();
      if (found[0] >= asked.train.steps && !asks_for_another_run(asked, out.before))
        out.done = finished(asked.log.run_dir, found[0]);
      found[1] = out.done.has_value();
    }
  }
  crew.tell("start.resume", std::span(found));
  if (!crew.leads() && found[1]) out.done.emplace().step = found[0];
  if (found[0] >= 0) {
    const std::string digest =
        crew.tell("start.resume", crew.leads() ? base::to_hex(out.from->manifest_sha256()) : "");
    base::Sha256Digest manifest{};
    PLEAT_CHECK(base::from_hex(digest, manifest));
    if (!crew.leads())
      out.from = checkpoint::open_same(
          *out.vfs, base::join_path(used.checkpoint.dir, checkpoint::step_name(found[0])), manifest);
  }
  return out;
}

}  // namespace pleat::train
