#include "exchange/start_weights.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "exchange/parameter_stream.h"
#include "model/state.h"

namespace pleat::exchange {
namespace {

constexpr int64_t kBytesAtOnce = int64_t{8} << 20;

bool is_rest(const std::string& name) { return name.ends_with(model::kRest); }

std::string weight_of(const std::string& name) {
  return is_rest(name) ? name.substr(0, name.size() - std::string_view(model::kRest).size()) : name;
}

}  // namespace

FolderWeights::FolderWeights(const safetensors::ModelFolder& folder, const family::FamilyConfig& model,
                             const std::vector<model::Parameter>& table)
    : folder_(folder), plan_(plan_load(folder, model, table)), report_(report_of(plan_)) {
  for (const auto& [p, pieces] : plan_.pieces) parameters_[p->name] = {p, &pieces};
  for (int layer = 0; layer < config::num_all_layers(model.config); ++layer)
    if (const std::string name = family::correction_bias_name(model.config, layer); !name.empty()) {
      biases_[fmt::format("layers.{}.router.expert_bias", layer)] = name;
      ++report_.num_tensors;
    }
}

const FolderWeights::Parameter& FolderWeights::parameter_of(const std::string& name) const {
  const auto found = parameters_.find(weight_of(name));
  PLEAT_CHECK(found != parameters_.end(), "no parameter '{}'", name);
  return found->second;
}

StartWeights::Kept FolderWeights::kept(const std::string& name, tensor::Dtype run) const {
  if (name.ends_with(".router.expert_bias")) return {tensor::Dtype::F32, !biases_.contains(name)};
  const std::vector<family::Piece>& pieces = *parameter_of(name).pieces;
  if (is_rest(name)) return {as_[name] = run, leaves_no_rest(folder_, pieces)};
  return {as_[name] = stored_type(folder_, pieces, run)};
}

void FolderWeights::pour(const std::string& name, int64_t begin, const checkpoint::Sink& sink) {
  if (const auto bias = biases_.find(name); bias != biases_.end())
    return stream_correction_bias(folder_, bias->second, begin, sink);
  const Parameter& p = parameter_of(name);
  stream_parameter(folder_, *p.parameter, *p.pieces, as_.at(name), begin, sink);
}

std::string FolderWeights::identity() const {
  std::string out = "folder\n";
  const auto add = [&](const std::string& path, bool needed) {
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0)
      out += fmt::format("{} {} {}.{:09}\n", std::filesystem::path(path).filename().string(), status.st_size,
                         status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
    else if (needed)
      base::fail_with(base::ExitCode::Storage, "{} cannot be looked at any more", path);
  };
  for (const safetensors::File& file : folder_.files()) add(file.path(), true);
  // Which file holds what, and what codes mean.
  add(folder_.path() + "/" + safetensors::kIndexFileName, false);
  out += folder_.scheme().text() + "\n";
  return out;
}

CheckpointWeights::CheckpointWeights(const checkpoint::Loaded& loaded, std::vector<checkpoint::Expected> run)
    : loaded_(loaded), restorer_(train::PartRestorer::of_weights(loaded, run)) {
  for (checkpoint::Expected& e : run) run_[e.name] = std::move(e);
}

StartWeights::Kept CheckpointWeights::kept(const std::string& name, tensor::Dtype run) const {
  return {run, !restorer_.has(name)};
}

void CheckpointWeights::pour(const std::string& name, int64_t begin, const checkpoint::Sink& sink) {
  const checkpoint::Expected& e = run_.at(name);
  const int64_t length = checkpoint::num_bytes_of(e.dtype, e.shape, name);
  std::vector<std::byte> bytes;
  // Whole elements, wherever it begins.
  const int64_t size = tensor::size_of(e.dtype);
  for (int64_t at = begin / size * size; at < length; at += kBytesAtOnce) {
    const checkpoint::Part part{at, 0, std::min(kBytesAtOnce, length - at)};
    bytes.resize(static_cast<size_t>(part.count));
    restorer_.read(name, e.dtype, {&part, 1}, bytes);
    sink(std::span<const std::byte>(bytes).subspan(static_cast<size_t>(std::max<int64_t>(begin - at, 0))));
  }
}

std::string CheckpointWeights::identity() const {
  return "checkpoint " + base::to_hex(loaded_.manifest_sha256()) + "\n";
}

}  // namespace pleat::exchange
