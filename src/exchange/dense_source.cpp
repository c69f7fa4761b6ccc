#include "exchange/dense_source.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "exchange/source_files.h"
#include "exchange/trained_model.h"
#include "model/parameters.h"

namespace pleat::exchange {
namespace {

class FolderSource final : public DenseSource {
 public:
  explicit FolderSource(const std::string& path)
      : model_(family::read_model_config(path)),
        folder_(safetensors::ModelFolder::open(path)),
        files_(read_small_files(path)),
        notes_(model_.notes) {
    model_.config = config::resolve(model_.config);
    const LoadPlan plan = plan_load(folder_, model_, model::make_parameters(model_.config));
    for (const std::string& w : folder_.warnings()) notes_.push_back(w);
    for (const std::string& name : plan.unused) notes_.push_back(fmt::format("'{}' is left out", name));
  }

  const family::FamilyConfig& model() const override { return model_; }
  const std::string& config_json() const override { return find(files_, "config.json")->text; }
  const std::vector<SmallFile>& files() const override { return files_; }
  const std::vector<std::string>& notes() const override { return notes_; }
  safetensors::ElementType type_of(const std::string& name) const override { return folder_.at(name).type; }
  void read(const std::string& name, std::vector<std::byte>& out) override {
    out.resize(static_cast<size_t>(folder_.at(name).num_bytes()));
    folder_.read(name, out);
  }

 private:
  family::FamilyConfig model_;
  safetensors::ModelFolder folder_;
  std::vector<SmallFile> files_;
  std::vector<std::string> notes_;
};

class RunSource final : public DenseSource {
 public:
  explicit RunSource(const std::string& path) : trained_(path, "") {
    notes_ = {fmt::format("weights of step {} ({}) as {}", trained_.checkpoint().step(),
                          trained_.checkpoint().path(), trained_.dtype())};
  }

  const family::FamilyConfig& model() const override { return trained_.model(); }
  const std::string& config_json() const override { return trained_.config_json(); }
  const std::vector<SmallFile>& files() const override { return trained_.files(); }
  const std::vector<std::string>& notes() const override { return notes_; }
  safetensors::ElementType type_of(const std::string& name) const override { return at(name).spec.type; }
  void read(const std::string& name, std::vector<std::byte>& out) override {
    const NamedTensor& tensor = at(name);
    trained_.read(tensor, out);
    require_finite(tensor.spec, out);
  }

 private:
  const NamedTensor& at(const std::string& name) const {
    const auto found = std::find_if(trained_.tensors().begin(), trained_.tensors().end(),
                                    [&](const NamedTensor& t) { return t.spec.name == name; });
    PLEAT_CHECK(found != trained_.tensors().end(), "the run has no tensor '{}'", name);
    return *found;
  }

  TrainedModel trained_;
  std::vector<std::string> notes_;
};

}  // namespace

std::unique_ptr<DenseSource> DenseSource::open(const std::string& path) {
  namespace fs = std::filesystem;
  if (fs::exists(path + "/config.json")) return std::make_unique<FolderSource>(path);
  if (fs::exists(path + "/config.toml")) return std::make_unique<RunSource>(path);
  fail_no_model("", path);
}

}  // namespace pleat::exchange
