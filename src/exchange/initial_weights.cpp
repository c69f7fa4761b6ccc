#include "exchange/initial_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/posix_vfs.h"
#include "base/replace_file.h"
#include "checkpoint/choose.h"
#include "checkpoint/directory.h"
#include "config/run_files.h"
#include "config/schema.h"
#include "exchange/source_files.h"
#include "exchange/start_state.h"
#include "exchange/start_weights.h"
#include "exchange/weights.h"
#include "model/parameters.h"

namespace pleat::exchange {
namespace {

namespace fs = std::filesystem;

bool holds(const std::vector<std::string>& list, const char* word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

bool is_of_model(const config::Key& key) {
  return key.path.starts_with("model.") || key.path.starts_with("moe.");
}

// What CONFIG leaves out of [model] and [moe] comes from the source. Balancing is taken whole or not at all: a
// coefficient belongs to the kinds it was made for.
config::Config with_model_of(const config::Config& asked, const config::Config& source,
                             const std::string& where) {
  config::Config out = asked;
  const bool own_balance = asked.asked.contains("moe.load_balancing");
  for (const config::Key& key : config::schema()) {
    if (!is_of_model(key) || asked.asked.contains(key.path) || key.unmet(source)) continue;
    // How numbers are kept goes with the device.
    if (key.path == "model.dtype" && asked.device.kind != source.device.kind) continue;
    if (own_balance &&
        (key.path == "moe.aux_coef" || key.path == "moe.global_aux_form" || key.path == "moe.aux_convention"))
      continue;
    key.set(out, key.get(source));
    if (key.get(source) != key.default_value()) out.asked[key.path] = config::to_text(key.get(source));
  }
  const config::Config used = config::resolve(out);
  std::vector<std::string> differing;
  for (const config::Change& change : config::changes(source, used))
    if (change.key->resume == config::OnResume::SameModel && asked.asked.contains(change.key->path))
      differing.push_back(change.text());
  const std::vector<std::string>&had = source.moe.load_balancing, &has = used.moe.load_balancing;
  if (source.moe.num_experts > 0 && holds(had, "bias") && !holds(has, "bias"))
    differing.push_back(
        "moe.load_balancing: the routers have correction biases; keep \"bias\" (moe.bias_update_rate = 0 "
        "leaves "
        "them as they are)");
  if (source.moe.num_experts > 0 && holds(had, "sinkhorn") != holds(has, "sinkhorn"))
    differing.push_back("moe.load_balancing: \"sinkhorn\" is part of how the model chooses experts");
  if (!differing.empty())
    base::fail(
        "the model of {} is another one than the configuration says (source -> configuration):\n  {}\nLeave "
        "these keys out: they come from the source",
        where, fmt::join(differing, "\n  "));
  return out;
}

}  // namespace

struct InitialWeights::Source {
  std::unique_ptr<const checkpoint::Reading> reading;  // of a run
  std::string folder;
  config::Config config;  // resolved
  std::string tokenizer;
  std::string note;  // of a model folder: how its weights are stored where not as numbers

  Source(const InitOptions& o) : folder(o.source) {
    if (fs::exists(folder + "/" + config::kRecordName)) {
      reading = std::make_unique<const checkpoint::Reading>(config::read_record(folder).checkpoint.dir,
                                                            checkpoint::parse_which(o.step));
      const checkpoint::Loaded& loaded = reading->chosen.loaded;
      config = config::resolve(config::placed(
          config::parse_record(loaded.text("config"), {}, loaded.path() + " (saved config)"), folder));
      tokenizer = config.data.tokenizer;
    } else if (fs::exists(folder + "/config.json")) {
      if (!o.step.empty())
        base::fail("--step {}: '{}' is no run folder and has no checkpoints", o.step, folder);
      const family::FamilyConfig described = family::read_model_config(folder);
      config = described.config;
      note = family::quantization_note(described);
      if (config.model.num_mtp_layers > 0 && !has_mtp_tensors(safetensors::ModelFolder::open(folder), config))
        config.model.num_mtp_layers = 0;
      config = config::resolve(config);
      tokenizer = has_tokenizer(read_small_files(folder)) ? folder : "byte";
    } else {
      fail_no_model("--init ", folder);
    }
  }

  checkpoint::SaveResult save(const StartState& state, const config::Config& used,
                              const std::vector<model::Parameter>& table,
                              const checkpoint::StreamWatch& watch) const {
    if (reading) {
      CheckpointWeights weights(reading->chosen.loaded, state.weights());
      return state.save(weights, watch);
    }
    family::FamilyConfig described = family::read_model_config(folder);
    described.config = used;
    const safetensors::ModelFolder opened = safetensors::ModelFolder::open(folder);
    FolderWeights weights(opened, described, table);
    return state.save(weights, watch);
  }

  std::vector<SmallFile> files() const {
    if (!reading) return read_small_files(folder);
    const std::string copied = copied_files_folder(folder);
    return fs::is_directory(copied) ? read_small_files(copied) : std::vector<SmallFile>();
  }
};

InitialWeights::InitialWeights(const InitOptions& options, const std::string& config_path,
                               const std::vector<std::string>& sets) {
  const config::Config asked = config::read_unchecked(config_path, sets);
  const std::string& folder = asked.log.run_dir;
  origin_.path = fs::weakly_canonical(fs::absolute(options.source)).string();
  origin_.asked_step = options.step == "newest" ? "" : options.step;
  const std::string checkpoints = config::resolve(asked).checkpoint.dir;
  base::PosixVfs vfs;
  const bool has_checkpoints =
      vfs.stat(checkpoints) && !checkpoint::list_checkpoints(vfs, checkpoints).steps.empty();
  const std::optional<run::Origin> before = run::read_origin(folder);
  if (has_checkpoints) {
    if (!before || !before->same_request(origin_))
      base::fail(
          "'{}' has checkpoints already, and was started {}; leave --init out to go on with it, or choose "
          "another log.run_dir",
          folder, before ? "from " + before->text() : "without --init");
  }
  // A start that was stopped between its weights and asked.toml begins again.
  if (has_checkpoints && fs::exists(folder + "/" + config::kAskedName)) {
    // Its own settings of the model, so that the source may be gone.
    const config::Config own = config::resolve(config::read_unchecked(folder, {}));
    config_ = with_model_of(asked, own, folder);
    if (!asked.asked.contains("data.tokenizer")) {
      config_.data.tokenizer = own.data.tokenizer;
      if (own.data.tokenizer != "byte") config_.asked["data.tokenizer"] = config::to_text(own.data.tokenizer);
    }
    origin_ = *before;
    remark_ = fmt::format("'{}' was started from {} and goes on", folder, before->text());
    config::validate(config_);
    return;
  }
  source_ = std::make_unique<Source>(options);
  config_ = with_model_of(asked, source_->config, options.source);
  if (!asked.asked.contains("data.tokenizer") && source_->tokenizer != "byte") {
    config_.data.tokenizer = source_->tokenizer;
    config_.asked["data.tokenizer"] = config::to_text(source_->tokenizer);
  }
  config::validate(config_);
  if (source_->reading) {
    origin_.step = source_->reading->chosen.loaded.step();
    origin_.state_sha256 = source_->reading->chosen.loaded.state_sha256();
    remark_ = fmt::format("{}", fmt::join(source_->reading->chosen.remarks(), "\n"));
  } else {
    remark_ = fmt::format("using the weights of {}", options.source);
    if (!source_->note.empty()) remark_ += "\nnote: " + source_->note;
  }
}

InitialWeights::~InitialWeights() = default;

void InitialWeights::write_origin(const config::Config& used) const {
  run::write_origin(used.log.run_dir, origin_);
}

void InitialWeights::write(const config::Config& used, const checkpoint::StreamWatch& watch) const {
  PLEAT_CHECK(source_, "the run goes on");
  const std::vector<model::Parameter> table = model::make_parameters(used);
  const StartState state(used, table);
  const std::string copied = copied_files_folder(used.log.run_dir);
  const std::vector<SmallFile> files = source_->files();
  if (!files.empty()) fs::create_directories(copied);
  for (const SmallFile& file : files) base::replace_file(base::join_path(copied, file.name), file.text);
  if (fs::is_directory(copied))  // of a start that was stopped, from another source
    for (const SmallFile& file : read_small_files(copied))
      if (!find(files, file.name)) fs::remove(copied + "/" + file.name);
  run::Origin origin = origin_;
  const checkpoint::SaveResult saved = source_->save(state, used, table, watch);
  if (origin.state_sha256.empty()) {
    origin.state_sha256 = saved.state_sha256;
    run::write_origin(used.log.run_dir, origin);
  }
}

}  // namespace pleat::exchange
