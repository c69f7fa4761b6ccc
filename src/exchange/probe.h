// One forward (and backward) of a Hugging Face model on given tokens, everything written to a file: how
// anybody compares Pleat with another implementation.
#pragma once

#include <string>
#include <vector>

namespace pleat::exchange {

struct ProbeOptions {
  std::string model_folder, tokens_path, out_path;
  bool gradients = false;
  bool aux_gradients =
      false;  // gradients of loss + auxiliary losses with their coefficients, instead of the loss alone
  // also write of every MoE layer N routing.N, the experts each token went to, and router_logits.N, what they were
  // chosen by
  bool routing = false;
  std::string routing_from;       // a file with routing.N: tokens go there; probabilities are the model's own
  std::string dtype = "float32";  // float32 | float64 | bfloat16 (on a GPU)
  std::string device = "cpu";     // cpu | cuda
  int64_t threads = 0;            // 0: all cores
  std::vector<std::string> sets;  // overrides of the model's config, "section.key=value"
};

struct ProbeResult {
  double loss = 0;
  double aux_loss =
      0;  // auxiliary losses of the model's routers, before coefficients; 0 where there are none
  bool has_aux_loss = false;
  int64_t num_tensors = 0;
  std::string note;  // how the weights are stored where not as numbers; or empty
};

// Tokens: a safetensors file with `input_ids` [B, S] (I64 or I32). Writes logits [B,S,V], loss [1] (labels =
// input_ids, shifted by one, mean over predicted tokens), hidden.0 (embedding) to hidden.L (the last one
// after the final norm), aux_loss_hf [1] where the routers have an auxiliary loss, and with gradients
// grad.NAME for every parameter under the name it has inside the loaded model. routing.N is I32 [B,S,k], the
// experts of a token ascending, router_logits.N [B,S,E]. Replayed routing tells rounding apart from its echo: near a tie, a rounded
// number sends a token to another expert, and everything after it differs. Layers of multi-token
// prediction are left out, as transformers does, unless `sets` has model.num_mtp_layers: then mtp_loss.D is
// written for every depth D, and gradients are those of the loss with these added.
ProbeResult probe(const ProbeOptions& options);

}  // namespace pleat::exchange
