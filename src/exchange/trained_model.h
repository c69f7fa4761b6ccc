// A checkpoint of a run as the Hugging Face model it is: a config.json that describes it and its
// tensors under their names on disk. What an export writes and an upcycle starts from.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/choose.h"
#include "checkpoint/save_streamed.h"
#include "exchange/describe.h"
#include "exchange/source_files.h"
#include "exchange/weights.h"

namespace pleat::exchange {

class TrainedModel {
 public:
  // `step`: which checkpoint (checkpoint::parse_which); it is held against pruning. The config.json is the source's where the run was imported (with
  // another dtype when asked for) and must still describe the model; else one that does is made
  // (exchange/describe.h). dtype: bf16 | f16 | f32; empty: what the source's config.json says, f32 for a
  // model from scratch. Correction biases stay F32. without_mtp leaves out layers of multi-token prediction,
  // which must be there. `watch` hears of the bytes read to verify the checkpoint.
  TrainedModel(const std::string& run_folder, const std::string& dtype, bool without_mtp = false,
               const std::string& step = "", const checkpoint::StreamWatch& watch = {});
  ~TrainedModel();
  TrainedModel(const TrainedModel&) = delete;
  TrainedModel& operator=(const TrainedModel&) = delete;

  const family::FamilyConfig& model() const { return model_; }  // its config is the trained one, resolved
  const std::string& config_json() const { return json_; }
  // Of the source, with the tokenizer the model was trained with and what else its use needs
  // (exchange/companion_files.h).
  const std::vector<SmallFile>& files() const { return files_; }
  const std::string& tokenizer_note() const {
    return tokenizer_note_;
  }  // what files() lacks and why; or empty
  const std::string& dtype() const { return dtype_; }
  const checkpoint::Loaded& checkpoint() const;
  // The step used, and what was passed over.
  std::vector<std::string> remarks() const;
  const std::vector<model::Parameter>& parameters() const { return table_; }
  const std::vector<NamedTensor>& tensors() const { return tensors_; }

  // Tensors that the checkpoint has in more bits than they are written in.
  int64_t num_rounded() const;

  // The bytes of one of tensors(), in order (exchange/parameter_stream.h). Blocks are checked as they are read; digests
  // were, when the checkpoint was chosen.
  void stream(const NamedTensor& tensor, const checkpoint::Sink& sink);
  // All of them.
  void read(const NamedTensor& tensor, std::vector<std::byte>& out);

 private:
  std::unique_ptr<const checkpoint::Reading> reading_;
  family::FamilyConfig model_;
  std::string json_, dtype_, tokenizer_note_;
  std::vector<SmallFile> files_;
  std::vector<model::Parameter> table_;
  std::vector<NamedTensor> tensors_;
  std::optional<checkpoint::PartReader> reader_;
};

// A number that is not finite in the type on disk is an error. `first`: which element of the tensor the bytes begin with.
void require_finite(const safetensors::TensorSpec& spec, std::span<const std::byte> bytes, int64_t first = 0);

}  // namespace pleat::exchange
