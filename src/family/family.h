// Hugging Face model families: how a config.json becomes our config, and which tensors of a checkpoint hold
// which part of our parameters. A family is one small description file; everything else here is shared.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "model/parameter.h"

namespace pleat::family {

class ConfigReader;  // family/config_reader.h

// How a family spells the parts of its tensor names that differ between families.
struct Spelling {
  std::string_view router = "mlp.gate";      // below model.layers.N.
  std::string_view experts = "mlp.experts";  // per-expert tensors: experts.E.GATE.weight on disk
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string_view shared = "mlp.shared_experts";
  std::string_view shared_gate = "mlp.shared_expert_gate";
  bool fused_transposed = false;  // gpt-oss: [E, in, out] with gate and up columns interleaved
  std::string_view model_router = "mlp.gate", model_experts = "mlp.experts";  // names inside the loaded model
  bool mtp = false;  // layers of multi-token prediction behind the last one, named as DeepSeek-V3 does
};

struct Family {
  std::string_view model_type;
  void (*read)(ConfigReader&, config::Config&);
  Spelling spelling;
  double default_aux_coef = 0;  // router_aux_loss_coef where the file has none; 0: no auxiliary loss
};

const std::vector<const Family*>& families();
// Throws naming the model types that are known.
const Family& find_family(std::string_view model_type);

// The config of a model folder: its config.json through its family. The result is validated and not yet
// resolved; `sets` are applied last. dtype is "float32" or "float64".
struct FamilyConfig {
  const Family* family = nullptr;
  config::Config config;
  double aux_coef = 0;           // router_aux_loss_coef, whether or not the file trains with it
  int64_t num_mtp_declared = 0;  // layers of multi-token prediction the file names, before `sets`
  std::string quantization;  // how weights are stored where not as numbers (safetensors::Scheme); or empty
  std::vector<std::string> notes;  // settings that have no meaning here, by name
};
// "weights are stored as ..., and dequantized as they are read"; empty where they are numbers. Among the notes.
std::string quantization_note(const FamilyConfig& model);
FamilyConfig read_model_config(const std::string& folder, const std::vector<std::string>& sets = {});
FamilyConfig parse_model_config(const std::string& json_text, const std::string& source,
                                const std::vector<std::string>& sets = {});

// Where one Hugging Face tensor lies inside one of our parameters.
enum class Layout : uint8_t {
  Same,            // rows [begin, begin + size) of the block
  Transposed,      // the block holds its transpose
  TransposedEven,  // the block's rows are the even columns of the tensor (transposed), of which there are
                   // twice as many
  TransposedOdd,
  Even,  // one-dimensional: the block's elements are the even ones of the tensor
  Odd,
  Columns,  // columns [column, column + width of the parameter) of the tensor
};
struct Piece {
  std::string name;            // Hugging Face name
  std::vector<int64_t> shape;  // of that tensor
  int64_t expert = -1;         // -1: all of dimension 0 (or a parameter without experts)
  int64_t begin = 0,
          size = 0;  // rows of the block's own first dimension (the second one for expert parameters)
  Layout layout = Layout::Same;
  int64_t column = 0;  // Layout::Columns
};

// On disk (per-expert tensors as save_pretrained writes them) or inside the loaded model (fused experts).
enum class Naming : uint8_t { Disk, Model };
std::vector<Piece> pieces_of(const Family& family, const config::Config& config,
                             const model::Parameter& parameter, Naming naming);
// The router's correction bias, which is state but no parameter; empty when the family has none.
std::string correction_bias_name(const config::Config& config, int layer);
// Tensors on disk that only say another one again: embedding and head of layers of multi-token prediction.
struct SharedCopy {
  std::string copy, original;
};
std::vector<SharedCopy> shared_copies(const config::Config& config);

// Copies between one piece and its parameter, both dense in memory, element type T.
template <class T>
void piece_into_parameter(const Piece& piece, const model::Parameter& parameter, const T* tensor, T* out);
template <class T>
void parameter_into_piece(const Piece& piece, const model::Parameter& parameter, const T* data, T* tensor);

}  // namespace pleat::family
