// Where the weights of a new run come from: a model folder or a checkpoint. Tensor by tensor, from where they are.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/load.h"
#include "checkpoint/save_streamed.h"
#include "exchange/weights.h"
#include "train/restore_state.h"

namespace pleat::exchange {

class StartWeights {
 public:
  virtual ~StartWeights() = default;
  struct Kept {
    tensor::Dtype dtype{};
    bool zero = false;
  };
  // How a checkpoint keeps a weight, its rest (model/state.h) or a correction bias that the run has in this type.
  virtual Kept kept(const std::string& name, tensor::Dtype run) const = 0;
  // Its bytes in the type it is kept in (checkpoint::Pour).
  virtual void pour(const std::string& name, int64_t begin, const checkpoint::Sink& sink) = 0;
  // Says which numbers these are (checkpoint::StreamedState::source).
  virtual std::string identity() const = 0;
};

// Of a folder; it, the description and the table outlive this. Weights are kept in the folder's own type where that is
// exact.
class FolderWeights : public StartWeights {
 public:
  // Throws as plan_load does.
  FolderWeights(const safetensors::ModelFolder& folder, const family::FamilyConfig& model,
                const std::vector<model::Parameter>& table);
  const LoadReport& report() const { return report_; }

  Kept kept(const std::string& name, tensor::Dtype run) const override;
  void pour(const std::string& name, int64_t begin, const checkpoint::Sink& sink) override;
  // Names, sizes and times of its files.
  std::string identity() const override;

 private:
  struct Parameter {
    const model::Parameter* parameter;
    const std::vector<family::Piece>* pieces;
  };
  const Parameter& parameter_of(const std::string& name) const;

  const safetensors::ModelFolder& folder_;
  LoadPlan plan_;
  LoadReport report_;
  std::map<std::string, Parameter> parameters_;      // by name
  std::map<std::string, std::string> biases_;        // tensors of correction biases by name
  mutable std::map<std::string, tensor::Dtype> as_;  // what kept() said
};

// Of a checkpoint that has been verified and outlives this. Every tensor is kept in the run's own type.
class CheckpointWeights : public StartWeights {
 public:
  // `run`: weights, rests and correction biases as the run has them. Throws where shapes differ.
  CheckpointWeights(const checkpoint::Loaded& loaded, std::vector<checkpoint::Expected> run);

  Kept kept(const std::string& name, tensor::Dtype run) const override;
  void pour(const std::string& name, int64_t begin, const checkpoint::Sink& sink) override;
  std::string identity() const override;

 private:
  const checkpoint::Loaded& loaded_;
  std::map<std::string, checkpoint::Expected> run_;
  train::PartRestorer restorer_;
};

}  // namespace pleat::exchange
