// A model as named tensors on disk, whether it lies in a Hugging Face folder or in a run's checkpoint.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exchange/source_files.h"
#include "exchange/weights.h"

namespace pleat::exchange {

class DenseSource {
 public:
  // `path` is a model folder when it holds a config.json, a run when it holds a config.toml. All tensors the
  // model needs are there, in their shapes.
  static std::unique_ptr<DenseSource> open(const std::string& path);
  virtual ~DenseSource() = default;

  virtual const family::FamilyConfig& model() const = 0;  // config resolved
  virtual const std::string& config_json() const = 0;
  virtual const std::vector<SmallFile>& files() const = 0;
  virtual const std::vector<std::string>& notes() const = 0;
  virtual safetensors::ElementType type_of(const std::string& name) const = 0;
  virtual void read(const std::string& name, std::vector<std::byte>& out) = 0;
};

}  // namespace pleat::exchange
