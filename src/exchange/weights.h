// Weights between a Hugging Face model folder and our parameters: which tensor holds what. Their numbers go through
// exchange/parameter_stream.h.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/load.h"
#include "family/family.h"
#include "safetensors/model_folder.h"
#include "safetensors/writer.h"

namespace pleat::exchange {

struct LoadReport {
  int64_t num_tensors = 0;
  std::vector<std::string>
      unused;                  // tensors of the folder the model has no place for and that may be left out
  int64_t num_unused_mtp = 0;  // beside these: of layers of multi-token prediction the model leaves out
};

// Which tensors of the folder hold which parameter. Missing, ill-shaped or unknown tensors are listed in one
// error. Per-expert and fused expert tensors are both understood.
struct LoadPlan {
  std::vector<std::pair<const model::Parameter*, std::vector<family::Piece>>> pieces;  // into the given table
  std::vector<std::string> unused;
  int64_t num_unused_mtp = 0;
};
LoadPlan plan_load(const safetensors::ModelFolder& folder, const family::FamilyConfig& model,
                   const std::vector<model::Parameter>& table);

// Of the tensors that hold parameters, without correction biases.
LoadReport report_of(const LoadPlan& plan);

// Fills the weights (and the router's correction bias) among `targets` from the folder; moments become zero.
// What plan_load refuses is refused before anything is written. Embedding and head stored again for
// multi-token prediction must be the model's own, bit for bit, or absent.
LoadReport load_weights(const safetensors::ModelFolder& folder, const family::FamilyConfig& model,
                        const std::vector<model::Parameter>& table,
                        const std::vector<checkpoint::Target>& targets);

// Whether the folder holds layers of multi-token prediction behind the last one. transformers drops the
// tensors and keeps the config's word for them.
bool has_mtp_tensors(const safetensors::ModelFolder& folder, const config::Config& config);

// Every tensor of the model under its name on disk, in the order it is written; on disk, layers of
// multi-token prediction carry copies of embedding and head, as published checkpoints do.
struct NamedTensor {
  safetensors::TensorSpec spec;
  std::vector<std::pair<size_t, family::Piece>>
      parts;  // parameter index and piece; several where one tensor holds both halves
  int correction_bias_layer = -1;
};
std::vector<NamedTensor> tensors_on_disk(const family::FamilyConfig& model,
                                         const std::vector<model::Parameter>& table,
                                         safetensors::ElementType type, family::Naming naming);

// The numbers of one named tensor, read from `sources` (weights or gradients by parameter name).
using Source = checkpoint::TensorRef;
void gather(const NamedTensor& tensor, const std::vector<model::Parameter>& table,
            const std::vector<Source>& sources, std::vector<std::byte>& out);

}  // namespace pleat::exchange
