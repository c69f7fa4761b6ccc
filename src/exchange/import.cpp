#include "exchange/import.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/posix_vfs.h"
#include "base/terminal_text.h"
#include "checkpoint/directory.h"
#include "config/run_files.h"
#include "config/schema.h"
#include "exchange/balancing.h"
#include "exchange/source_files.h"
#include "exchange/start_state.h"
#include "exchange/start_weights.h"
#include "exchange/weights.h"
#include "model/decoder.h"
#include "model/parameters.h"
#include "train/checkpoint_owner.h"
#include "train/run_tokenizer.h"

namespace pleat::exchange {
namespace {

namespace fs = std::filesystem;

// What stands between the run's config and training on text; empty when nothing does. `own`: data.tokenizer
// is the copy of the folder's, which is not there yet.
std::string tokenizer_note(const std::string& model_folder, const config::Config& c, bool own) {
  if (!own) {
    if (c.data.tokenizer != "byte") return {};
    return "the folder holds no tokenizer that can be read; set data.tokenizer before training on text";
  }
  config::Config beside = c;
  beside.data.tokenizer = model_folder;
  try {
    train::open_run_tokenizer(beside);
    return {};
  } catch (const base::Error& e) {
    return fmt::format("the folder's tokenizer cannot be used: {}; set data.tokenizer before training",
                       e.what());
  }
}

// What the family says, as text to parse with the sets. A default that is written out would be refused as soon
// as a set (data.train, say) takes its effect away, though nobody asked for it.
std::string family_text(const config::Config& c) {
  std::string out;
  for (const config::Key& key : config::schema()) {
    if (!key.present(c) || key.get(c) == key.default_value()) continue;
    out += fmt::format("{} = {}\n", key.path, config::to_text(key.get(c)));
  }
  return out;
}

// Weights of another run beside those of this one would be taken for newer ones.
void require_no_checkpoints(const config::Config& c, bool goes_on) {
  base::PosixVfs vfs;
  if (!vfs.stat(c.checkpoint.dir)) return;
  const std::vector<int64_t> steps = checkpoint::list_checkpoints(vfs, c.checkpoint.dir).steps;
  if (steps.empty() || (goes_on && steps == std::vector<int64_t>{0})) return;
  base::fail(
      "checkpoint.dir = \"{}\" has checkpoints already (newest: step {}): an import begins with none; choose "
      "another folder, or remove them",
      c.checkpoint.dir, steps.front());
}

// The run's folder while an import is at work in it.
class ImportPlace {
 public:
  // Writes nothing.
  ImportPlace(const std::string& run_folder, const std::string& model_folder)
      : folder_(run_folder),
        mark_(base::join_path(run_folder, config::kImportName)),
        source_(fs::weakly_canonical(fs::absolute(model_folder)).string()) {
    if (!vfs_.stat(mark_)) {
      require_new_folder(folder_, "an import");
      return;
    }
    if (const std::string begun = read_mark(); !begun.empty() && begun != source_ + "\n") fail_begun(begun);
    goes_on_ = true;
  }
  ~ImportPlace() {
    if (lock_ >= 0) vfs_.close(lock_, mark_);
  }
  ImportPlace(const ImportPlace&) = delete;

  // Whether an import of this source was at work here before.
  bool goes_on() const { return goes_on_; }

  // The mark is one file from its making to its end: whoever holds its lock is the one at work here.
  void begin() {
    made_ = !fs::exists(folder_);
    fs::create_directories(folder_);
    const int file = ::open(mark_.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (file < 0)
      base::fail_with(base::ExitCode::Storage, "cannot create '{}': {}", mark_, std::strerror(errno));
    ::close(file);
    const base::Lock lock = vfs_.try_lock(mark_, base::LockKind::Exclusive);
    if (lock.outcome == base::Lock::Busy || lock.outcome == base::Lock::Missing)
      base::fail("another import is at work in '{}'; wait for it, or choose another folder", folder_);
    if (lock.outcome == base::Lock::Held) lock_ = lock.file;
    const std::string begun = read_mark(), text = source_ + "\n";
    if (begun.empty())
      write_mark(text);
    else if (begun != text)
      fail_begun(begun);
    // Of the one that was cut short: the folder may hold others by now.
    fs::remove_all(copied_files_folder(folder_));
  }
  // Leaves the folder as it was found. Never throws: the error that led here is the one to report.
  void undo() noexcept {
    std::error_code ignored;
    fs::remove_all(copied_files_folder(folder_), ignored);
    fs::remove(base::join_path(folder_, "checkpoints"), ignored);  // where nothing else is in it
    fs::remove(mark_, ignored);
    if (made_) fs::remove(folder_, ignored);
  }
  void done() { vfs_.unlink(mark_); }

 private:
  static constexpr int64_t kMostMarkBytes = 1 << 16;

  std::string read_mark() { return base::read_file(vfs_, mark_, kMostMarkBytes); }

  // In place: under another inode the lock would be another.
  void write_mark(const std::string& text) {
    const int file = ::open(mark_.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    const bool written =
        file >= 0 && ::pwrite(file, text.data(), text.size(), 0) == std::ssize(text) && ::fsync(file) == 0;
    const int reason = errno;
    if (file >= 0) ::close(file);
    if (!written)
      base::fail_with(base::ExitCode::Storage, "cannot write '{}': {}", mark_, std::strerror(reason));
  }

  [[noreturn]] void fail_begun(const std::string& begun) const {
    if (fs::exists(base::join_path(folder_, config::kAskedName)))
      base::fail("'{}' is not empty: it is a run; an import needs a new or empty folder", folder_);
    base::fail(
        "'{}' holds an import of '{}' that was cut short; the same command goes on with it. Remove the "
        "folder, or "
        "choose another, to import '{}'",
        folder_, base::terminal_text(begun.substr(0, begun.find('\n'))), source_);
  }

  base::PosixVfs vfs_;
  std::string folder_, mark_, source_;
  bool goes_on_ = false, made_ = false;
  int lock_ = -1;
};

}  // namespace

ImportResult import_model(const ImportOptions& o) {
  ImportPlace place(o.run_folder, o.model_folder);
  family::FamilyConfig model = family::read_model_config(o.model_folder);
  const safetensors::ModelFolder folder = safetensors::ModelFolder::open(o.model_folder);
  config::Config asked = model.config;
  if (asked.model.num_mtp_layers > 0 && !has_mtp_tensors(folder, asked)) {
    asked.model.num_mtp_layers = 0;
    model.notes.push_back(
        "config.json names layers of multi-token prediction, but the folder holds none of them");
  }
  // A count or a list given replaces the family's before the text is made: keys that go with one must not
  // stay alone.
  for (const std::string& set : o.sets)
    if (set.starts_with("model.num_mtp_layers="))
      asked.model.num_mtp_layers = 0;
    else if (set.starts_with("moe.load_balancing=") && model::balances_by(asked, "aux"))
      asked.moe.load_balancing = {"none"}, asked.moe.aux_coef = {}, asked.moe.aux_convention = "switch";
  asked.log.run_dir = o.run_folder;
  const std::vector<SmallFile> files = read_small_files(o.model_folder);
  const std::string own_tokenizer = copied_files_folder(o.run_folder);
  if (has_tokenizer(files)) asked.data.tokenizer = own_tokenizer;
  asked = config::parse(family_text(asked), o.sets, o.model_folder);
  if (asked.log.run_dir != o.run_folder)
    base::fail("log.run_dir = \"{}\" is not the folder of the import, \"{}\"; remove that --set",
               asked.log.run_dir, o.run_folder);
  const config::Config c = config::resolve(asked);
  train::checkpoints_lie_outside(c);  // throws where they would lie in another run's folder
  train::require_own_checkpoints(c);
  require_no_checkpoints(c, place.goes_on());
  const family::FamilyConfig described = model;
  model.config = c;

  const std::vector<model::Parameter> table = model::make_parameters(c);
  const StartState state(c, table);
  FolderWeights weights(folder, model, table);
  const LoadReport& loaded = weights.report();

  place.begin();
  train::own_checkpoints(c);
  train::require_own_checkpoints(c);  // another may have begun at the same time
  checkpoint::SaveResult saved;
  try {
    fs::create_directories(copied_files_folder(o.run_folder));
    for (const SmallFile& file : files) write_small_file(copied_files_folder(o.run_folder), file);
    saved = state.save(weights, o.watch, {.max_shard_bytes = o.max_shard_bytes});
  } catch (const base::Error& error) {
    if (error.code() == base::ExitCode::BadInput) place.undo();
    throw;
  }
  // A default, or what has no effect, does not count as asked: another key that changes that must not have it
  // refused.
  for (const config::Key& key : config::schema())
    if (!key.present(asked) || key.unmet(asked) || key.get(asked) == key.default_value())
      asked.asked.erase(key.path);
  config::write_run_files(asked, asked, c);
  place.done();

  ImportResult out;
  out.model_type = model.family->model_type;
  out.num_tensors = loaded.num_tensors;
  const model::ParameterCount count = model::count_parameters(c, table);
  out.num_parameters = count.total + count.mtp;
  out.checkpoint_path = saved.path;
  out.num_bytes = saved.num_bytes;
  out.notes = model.notes;
  out.balancing_note = balancing_note(described, c);
  out.tokenizer_note = tokenizer_note(o.model_folder, c, c.data.tokenizer == own_tokenizer);
  for (const std::string& w : folder.warnings()) out.notes.push_back(w);
  for (const std::string& w : saved.warnings) out.notes.push_back(w);
  if (loaded.num_unused_mtp > 0)
    out.notes.push_back(
        fmt::format("{} tensors of multi-token prediction are not used (model.num_mtp_layers = {})",
                    loaded.num_unused_mtp, c.model.num_mtp_layers));
  for (const std::string& name : loaded.unused)
    out.notes.push_back(fmt::format("tensor '{}' is not used", name));
  return out;
}

}  // namespace pleat::exchange
