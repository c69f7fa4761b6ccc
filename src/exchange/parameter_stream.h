// Numbers on their way between a model folder's tensors and our parameters, a few MiB in memory at a time. Where a tensor
// holds a parameter in another order, one expert is, or all of the parameter and the tensor where there are no experts.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/save_streamed.h"
#include "exchange/weights.h"

namespace pleat::exchange {

// How a checkpoint keeps a parameter that the run has as `run`: as the folder does where that is exact and no wider.
tensor::Dtype stored_type(const safetensors::ModelFolder& folder, const std::vector<family::Piece>& pieces,
                          tensor::Dtype run);
// Whether narrow weights leave nothing of what the folder holds.
bool leaves_no_rest(const safetensors::ModelFolder& folder, const std::vector<family::Piece>& pieces);
// The bytes of a parameter from `begin` on, in its order: its numbers as F64, F32 or BF16, or as I16 what the BF16
// leaves (tensor/halves.h). A number that is not finite is an error.
void stream_parameter(const safetensors::ModelFolder& folder, const model::Parameter& p,
                      const std::vector<family::Piece>& pieces, tensor::Dtype as, int64_t begin,
                      const checkpoint::Sink& sink);
// The same of a router's correction bias, as F32.
void stream_correction_bias(const safetensors::ModelFolder& folder, const std::string& name, int64_t begin,
                            const checkpoint::Sink& sink);

// Parameters as somebody keeps them, by name.
struct ParameterStore {
  std::function<tensor::Dtype(const std::string& name)> dtype;
  // Fills `out` with the bytes from `begin` on.
  std::function<void(const std::string& name, int64_t begin, std::span<std::byte> out)> read;
};
// The bytes of a tensor on disk, in its order and type.
void stream_tensor(const NamedTensor& tensor, const std::vector<model::Parameter>& table,
                   const ParameterStore& store, const checkpoint::Sink& sink);

}  // namespace pleat::exchange
