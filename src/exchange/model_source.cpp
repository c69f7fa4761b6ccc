#include "exchange/model_source.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/foreign_text.h"
#include "config/run_files.h"
#include "exchange/source_files.h"
#include "exchange/weights.h"
#include "infer/vocabulary.h"
#include "safetensors/convert.h"
#include "train/run_tokenizer.h"

namespace pleat::exchange {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// What differs from `plain`, the model as it was trained or described: models are run here on the CPU, which
// takes narrow weights as float32.
std::vector<std::string> overrides(const ModelSourceOptions& o, const config::Config& plain) {
  std::vector<std::string> sets = {"device.threads=" + std::to_string(o.threads)};
  if (plain.device.kind != "cpu") sets.push_back("device.kind=\"cpu\"");
  if (!o.dtype.empty())
    sets.push_back(fmt::format("model.dtype=\"{}\"", o.dtype));
  else if (plain.model.dtype == "bfloat16")
    sets.push_back("model.dtype=\"float32\"");
  if (o.dtype == "float64" && plain.moe.num_experts > 0) sets.push_back("moe.router_dtype=\"float64\"");
  return sets;
}

json parsed(const std::string& folder, const SmallFile& file) {
  json out;
  try {
    out = json::parse(file.text);
  } catch (const json::exception& e) {
    base::fail("{}/{}: broken JSON: {}", folder, file.name, base::json_fault(e.what()));
  }
  if (!out.is_object()) base::fail("{}/{} is no JSON object", folder, file.name);
  return out;
}

// The small files beside a model's weights: how long its texts may be, what ends them, how they are read.
void read_model_files(const std::string& folder, ModelSource& out) {
  const std::vector<SmallFile> files = read_small_files(folder);
  if (const SmallFile* file = find(files, "config.json")) {
    const json config = parsed(folder, *file);
    if (const auto n = config.find("max_position_embeddings");
        n != config.end() && n->is_number_integer() && n->get<int64_t>() > out.max_context) {
      out.max_context = n->get<int64_t>();
      out.max_context_key = "max_position_embeddings of " + folder + "/config.json";
    }
  }
  if (const SmallFile* file = find(files, "generation_config.json")) {
    const json config = parsed(folder, *file);
    if (const auto id = config.find("eos_token_id"); id != config.end() && !id->is_null())
      for (const json& one : id->is_array() ? *id : json::array({*id})) {
        // One beyond the vocabulary is never drawn: cut-down models have such.
        if (!one.is_number_integer() || one < 0 || one > INT32_MAX)
          base::fail("{}/generation_config.json: eos_token_id {} is no token", folder, one.dump());
        out.end_tokens.push_back(one.get<int32_t>());
      }
  }
  if (out.tokenizer.empty() && has_tokenizer(files)) out.tokenizer = folder;
}

// Nothing where the tokenizer is the one the run was trained with, or nobody knows that one.
std::string other_tokenizer_remark(const std::string& name, const config::Config& config) {
  std::string hash;
  try {
    if (const auto described = train::described_datasets(config.data); !described.empty())
      hash = described.front().tokenizer_sha256;
    else if (config.data.tokenizer != "byte")
      hash = train::open_run_tokenizer(config)->tokenizer_hash();
  } catch (const base::Error&) {
    return "";  // the run's own is gone: the reason for another one
  }
  if (hash.empty() || hash == infer::Vocabulary(name).tokenizer().tokenizer_hash()) return "";
  return fmt::format(
      "note: --tokenizer {} is not the one the run was trained with ({}): its tokens mean something else to "
      "the model",
      name, config.data.tokenizer);
}

ModelSource open_run(const std::string& folder, const ModelSourceOptions& o) {
  ModelSource out;
  out.folder = folder;
  out.is_run = true;
  out.reading = std::make_shared<const checkpoint::Reading>(config::read_record(folder).checkpoint.dir,
                                                            checkpoint::parse_which(o.step));
  out.remarks = out.reading->chosen.remarks();
  const checkpoint::Loaded& loaded = out.reading->chosen.loaded;
  const std::string path = loaded.path() + " (saved config)", &text = loaded.text("config");
  config::Config asked = config::placed(
      config::parse_record(text, overrides(o, config::parse_record(text, {}, path)), path), folder);
  asked.model.num_mtp_layers = 0;  // they serve training
  out.config = config::resolve(asked);
  out.max_context = out.config.train.seq_len;
  out.max_context_key = "train.seq_len of " + path;
  out.tokenizer = o.tokenizer;
  // The copy made at the import is found where the folder is now.
  if (out.tokenizer.empty() && asked.data.tokenizer != "byte" &&
      asked.data.tokenizer != copied_files_folder(asked.log.run_dir))
    out.tokenizer = asked.data.tokenizer;
  if (const std::string copied = copied_files_folder(folder); fs::is_directory(copied))
    read_model_files(copied, out);
  if (out.tokenizer.empty()) out.tokenizer = "byte";
  if (!o.tokenizer.empty())
    if (const std::string remark = other_tokenizer_remark(o.tokenizer, out.config); !remark.empty())
      out.remarks.push_back(remark);
  if (out.config.model.vocab_size == 0) {
    asked.model.vocab_size = infer::Vocabulary(out.tokenizer).tokenizer().vocab_size();
    out.config = config::resolve(asked);
  }
  return out;
}

ModelSource open_folder(const std::string& folder, const ModelSourceOptions& o) {
  if (!o.step.empty()) base::fail("--step {}: '{}' is no run folder and has no checkpoints", o.step, folder);
  ModelSource out;
  out.folder = folder;
  const family::FamilyConfig described = family::read_model_config(folder);
  if (const std::string note = family::quantization_note(described); !note.empty())
    out.remarks.push_back("note: " + note);
  config::Config plain = described.config;
  plain.model.num_mtp_layers = 0;  // they serve training
  out.config = config::resolve(config::parse(config::to_toml(plain), overrides(o, plain), folder));
  out.tokenizer = o.tokenizer;
  read_model_files(folder, out);
  return out;
}

template <class To>
void converted(tensor::Dtype type, std::span<const std::byte> from, std::span<std::byte> to) {
  safetensors::decode(safetensors::element_type_of(type), from,
                      std::span(reinterpret_cast<To*>(to.data()), to.size() / sizeof(To)));
}

std::string load_run(const ModelSource& source, infer::Inference& model) {
  const checkpoint::Loaded& loaded = source.reading->chosen.loaded;
  std::vector<std::byte> raw, wide;
  checkpoint::PartReader reader(loaded);
  for (const checkpoint::Target& t : model.weights()) {
    const checkpoint::TensorEntry& entry = loaded.tensor(t.name);
    if (entry.shape != t.shape || !tensor::is_float(entry.dtype))
      base::fail("tensor '{}' of {} has another shape or type than its saved config says", t.name,
                 loaded.path());
    if (entry.dtype == t.dtype) {
      loaded.read_tensor(t.name, t.bytes);
      continue;
    }
    // A piece at a time; the checkpoint's digests were compared when it was chosen.
    constexpr int64_t kElementsAtOnce = int64_t{1} << 20;
    const int64_t from_size = tensor::size_of(entry.dtype), to_size = tensor::size_of(t.dtype);
    const int64_t count = t.bytes.size() / to_size;
    for (int64_t at = 0; at < count; at += kElementsAtOnce) {
      const int64_t now = std::min(kElementsAtOnce, count - at);
      const checkpoint::Part part{at * from_size, 0, now * from_size};
      raw.resize(static_cast<size_t>(part.count));
      reader.read(t.name, {&part, 1}, raw);
      wide.resize(static_cast<size_t>(now * to_size));
      if (t.dtype == tensor::Dtype::F64)
        converted<double>(entry.dtype, raw, wide);
      else
        converted<float>(entry.dtype, raw, wide);
      t.bytes.write(at * to_size, wide);
    }
  }
  return fmt::format("checkpoint of step {}", loaded.step());
}

}  // namespace

std::string ModelSource::load(infer::Inference& model) const {
  if (is_run) return load_run(*this, model);
  family::FamilyConfig described = family::read_model_config(folder);
  described.config = config;
  const LoadReport report =
      load_weights(safetensors::ModelFolder::open(folder), described, model.table(), model.weights());
  return fmt::format("{} tensors of a {} model", report.num_tensors, described.family->model_type);
}

ModelSource open_model_source(const std::string& folder, const ModelSourceOptions& options) {
  if (fs::exists(folder + "/config.toml")) return open_run(folder, options);
  if (fs::exists(folder + "/config.json")) return open_folder(folder, options);
  fail_no_model("", folder);
}

}  // namespace pleat::exchange
