#include "exchange/trained_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "config/run_files.h"
#include "exchange/companion_files.h"
#include "exchange/parameter_stream.h"
#include "model/parameters.h"
#include "safetensors/convert.h"

namespace pleat::exchange {
namespace {

using safetensors::ElementType;

struct DiskType {
  const char* name;
  const char* long_name;  // in a config.json
  ElementType type;
};
constexpr DiskType kTypes[] = {{"bf16", "bfloat16", ElementType::BF16},
                               {"f16", "float16", ElementType::F16},
                               {"f32", "float32", ElementType::F32}};

// Newer files say dtype, older ones torch_dtype.
const char* dtype_key(const nlohmann::ordered_json& j) {
  return j.contains("torch_dtype") && !j.contains("dtype") ? "torch_dtype" : "dtype";
}

const DiskType& choose_type(const std::string& asked, const nlohmann::ordered_json& j) {
  const auto& said = j.contains(dtype_key(j)) ? j.at(dtype_key(j)) : nlohmann::ordered_json(nullptr);
  for (const DiskType& t : kTypes)
    if (asked.empty() ? said.is_string() && said.get<std::string>() == t.long_name : asked == t.name)
      return t;
  if (!asked.empty()) base::fail("dtype '{}' is not known; needed bf16, f16 or f32", asked);
  if (!said.is_null())
    base::fail("the source's config.json has {} = {}; choose bf16, f16 or f32 with --dtype", dtype_key(j),
               said.dump().substr(0, 60));
  return kTypes[2];
}

void require_shapes(const checkpoint::Loaded& loaded, const std::vector<model::Parameter>& table) {
  for (const model::Parameter& p : table)
    if (p.tied_to.empty() && loaded.tensor(p.name).shape != p.shape)
      base::fail("{}: '{}' is {}, but the saved config makes it {}", loaded.path(), p.name,
                 safetensors::shape_text(loaded.tensor(p.name).shape), safetensors::shape_text(p.shape));
}

// The files of the tokenizer the model was trained with take the place of the source's. Returns what could
// not be done.
std::string replace_tokenizer(const std::string& tokenizer, std::vector<SmallFile>& files) {
  namespace fs = std::filesystem;
  std::erase_if(files, is_tokenizer_file);
  const bool is_folder = fs::is_directory(tokenizer);
  const std::string folder = is_folder ? tokenizer : (fs::path(tokenizer).parent_path() / ".").string();
  std::vector<SmallFile> found;
  if (fs::is_directory(folder)) found = read_tokenizer_files(folder);
  if (is_folder ? !has_tokenizer(found) : !find(found, fs::path(tokenizer).filename().string()))
    return fmt::format(
        "no tokenizer is written: data.tokenizer = \"{}\" of the run is no file of a name others look for",
        tokenizer);
  files.insert(files.end(), found.begin(), found.end());
  return {};
}

void verify_watched(const checkpoint::Loaded& loaded, const checkpoint::StreamWatch& watch) {
  checkpoint::StreamProgress progress{checkpoint::StreamProgress::ReadBack, 0,
                                      loaded.manifest().stream_length()};
  loaded.verify({0, loaded.manifest().tensors.size()}, [&](int64_t count) {
    progress.done += count;
    watch.tell(progress);
  });
}

}  // namespace

TrainedModel::TrainedModel(const std::string& run_folder, const std::string& dtype, bool without_mtp,
                           const std::string& step, const checkpoint::StreamWatch& watch)
    : reading_(std::make_unique<const checkpoint::Reading>(
          config::read_record(run_folder).checkpoint.dir, checkpoint::parse_which(step),
          [&](const checkpoint::Loaded& loaded) { verify_watched(loaded, watch); })) {
  const checkpoint::Loaded& loaded = checkpoint();
  // The config the weights were trained with, whatever the file says now.
  config::Config trained = config::resolve(config::placed(
      config::parse_record(loaded.text("config"), {}, loaded.path() + " (saved config)"), run_folder));
  if (without_mtp && trained.model.num_mtp_layers == 0)
    base::fail("{} has no layers of multi-token prediction to leave out", loaded.path());
  if (without_mtp) trained.model.num_mtp_layers = 0;

  const std::string copied = copied_files_folder(run_folder);
  if (std::filesystem::exists(copied)) files_ = read_small_files(copied);
  const std::string& tokenizer = trained.data.tokenizer;
  const bool tokenizer_is_copied = tokenizer == copied_files_folder(run_folder);
  if (tokenizer != "byte" && !tokenizer_is_copied) tokenizer_note_ = replace_tokenizer(tokenizer, files_);
  Description description;
  if (const SmallFile* source = find(files_, "config.json")) {
    const std::string where = copied + "/config.json";
    description.model = family::parse_model_config(source->text, where);
    description.json = source->text;
    const std::vector<std::string> differences = forward_differences(description.model.config, trained);
    if (!differences.empty())
      base::fail("{} does not describe the model of {} any more (described -> trained):\n  {}", where,
                 loaded.path(), fmt::join(differences, "\n  "));
  } else {
    description = describe(trained);
  }
  auto json = nlohmann::ordered_json::parse(description.json);
  if (json.erase("quantization_config") > 0)
    description.json = json.dump(2) + "\n";  // weights are plain here
  if (constexpr const char* key = "num_nextn_predict_layers"; without_mtp && json.contains(key)) {
    json[key] = 0;
    description.json = json.dump(2) + "\n";
  }
  const DiskType& type = choose_type(dtype, json);
  if (const char* key = dtype_key(json); !json.contains(key) || json.at(key) != type.long_name) {
    json[key] = type.long_name;
    description.json = json.dump(2) + "\n";
  }
  const bool imported = find(files_, "config.json") != nullptr;
  CompanionRequest companions{trained, trained.data.tokenizer, false};
  if (imported && (companions.tokenizer == "byte" || tokenizer_is_copied)) {
    companions.keeps_source_ids = true;
    companions.tokenizer = has_tokenizer(files_) ? copied : "";
  }
  if (tokenizer_note_.empty()) {
    const nlohmann::ordered_json before = json;
    for (const std::string& note : complete_companion_files(companions, files_, json)) tokenizer_note_ = note;
    if (json != before) description.json = json.dump(2) + "\n";
  }
  dtype_ = type.name;
  json_ = description.json;
  model_ = description.model;
  model_.config = trained;
  table_ = model::make_parameters(trained);
  require_shapes(loaded, table_);
  tensors_ = tensors_on_disk(model_, table_, type.type, family::Naming::Disk);
}

TrainedModel::~TrainedModel() = default;

const checkpoint::Loaded& TrainedModel::checkpoint() const { return reading_->chosen.loaded; }

int64_t TrainedModel::num_rounded() const {
  return std::count_if(tensors_.begin(), tensors_.end(), [&](const NamedTensor& t) {
    return std::any_of(t.parts.begin(), t.parts.end(), [&](const auto& part) {
      return tensor::size_of(checkpoint().tensor(table_[part.first].name).dtype) >
             safetensors::size_of(t.spec.type);
    });
  });
}

std::vector<std::string> TrainedModel::remarks() const { return reading_->chosen.remarks(); }

void TrainedModel::stream(const NamedTensor& t, const checkpoint::Sink& sink) {
  if (!reader_) reader_.emplace(checkpoint());
  const ParameterStore store{[&](const std::string& name) { return checkpoint().tensor(name).dtype; },
                             [&](const std::string& name, int64_t begin, std::span<std::byte> out) {
                               const checkpoint::Part part{begin, 0, static_cast<int64_t>(out.size())};
                               reader_->read(name, {&part, 1}, out);
                             }};
  stream_tensor(t, table_, store, sink);
}

void TrainedModel::read(const NamedTensor& t, std::vector<std::byte>& out) {
  out.clear();
  stream(t, [&](std::span<const std::byte> bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); });
}

void require_finite(const safetensors::TensorSpec& spec, std::span<const std::byte> bytes, int64_t first) {
  std::vector<float> numbers(bytes.size() / static_cast<size_t>(safetensors::size_of(spec.type)));
  safetensors::decode(spec.type, bytes, std::span<float>(numbers));
  for (size_t i = 0; i < numbers.size(); ++i)
    if (!std::isfinite(numbers[i]))
      base::fail("element {} of '{}' is not finite as {}; choose a wider --dtype, or an older checkpoint",
                 first + static_cast<int64_t>(i), spec.name, safetensors::name_of(spec.type));
}

}  // namespace pleat::exchange
