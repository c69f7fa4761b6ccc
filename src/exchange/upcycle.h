// A dense model becomes a Mixture of Experts that computes the same at the start.
//
// The dense MLP is y(x) = W_down (silu(W_gate x) * (W_up x)) of width f. Cut its width into G shards: y is
// the sum of the shards' outputs y_0 .. y_{G-1}. Expert e = c G + g is copy c of shard g, of width f/G; there
// are E/G copies, so G must divide E and f. The router has one random row per copy, repeated for the G
// experts of the copy: their logits are equal, and the experts of a copy stay together in the choice of the
// top k.
//
// When G divides k the k chosen experts are k/G whole copies, and with p_c the probability of one expert of
// copy c the output is sum_c p_c (y_0 + ... + y_{G-1}) = P/G y, where P is the sum of all k probabilities.
// The experts are multiplied by s so that s P/G = 1:
//   probabilities that sum to 1 (softmax over the chosen)   P = 1, always               s = G
//   softmax over all E, not normalised again                P = k/E at equal logits     s = G E/k
// The second P is exact only if all experts are chosen (k = E), or if the router is all zero (std = 0).
// When G does not divide k, some copy is chosen in part, y misses shards, and no scale can repair that.
//
// Where s goes. silu is not homogeneous: multiplying W_gate changes which function is computed. Only up and
// down are linear, so the rule `Linear` multiplies W_up by the largest power of two up to sqrt(s) and W_down
// by the rest: exact, and where s is a power of two without any rounding, in any element type. The rule
// `CubeRoot`, usual elsewhere, multiplies gate, up and down each by s^(1/3); that is exact for homogeneous
// activations, but with silu only for s = 1.
//
// So the start is exact (equal logits up to rounding) when and only when
//   G divides k, and (normalised, or k = E, or router std = 0), and (Linear, or s = 1).
//
// Ties. Equal logits of two copies occur with a router of zeros, and by chance in narrow types. With a choice
// that prefers the lower expert, as ours, the copies' experts being neighbours makes it choose whole copies
// all the same. Another implementation may break such ties otherwise and then mix copies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/save_streamed.h"

namespace pleat::exchange {

enum class UpcycleScaling : uint8_t { Linear, CubeRoot };

struct UpcycleOptions {
  std::string dense;         // a Hugging Face folder of family llama or qwen3, or a run of such a model
  std::string model_folder;  // new or empty
  int64_t num_experts = 8, top_k = 2;
  int64_t granularity = 1;      // G
  bool normalized = true;       // probabilities of the chosen sum to 1
  double router_init_std = -1;  // negative: the dense model's initializer_range
  int64_t seed = 1234;
  UpcycleScaling scaling = UpcycleScaling::Linear;
  int64_t max_shard_bytes = int64_t{5} * 1000 * 1000 * 1000;
  checkpoint::StreamWatch watch = {};
};

// What the options mean for the start, decided before a byte is read.
struct UpcycleStart {
  double scale = 1;                   // s
  double gate = 1, up = 1, down = 1;  // factors of the three matrices
  bool exact = false;
  bool rounds = false;  // a factor is no power of two: weights are rounded to their type once more
  std::string why;      // one sentence
};
// Throws when the numbers do not go together; `width` is f.
UpcycleStart upcycle_start(const UpcycleOptions& options, int64_t width, double router_init_std);

struct UpcycleResult {
  std::string model_type;
  UpcycleStart start;
  double router_init_std = 0;
  int64_t num_tensors = 0, num_shards = 0, num_bytes = 0;
  int64_t dense_parameters = 0, total_parameters = 0, active_parameters = 0;
  std::vector<std::string> notes;
};

// Writes a mixtral folder for llama, qwen3_moe for qwen3. Everything outside the MLPs keeps its bytes and its
// element type; experts and routers have the type of the MLP they came from (a run: the type an export would
// choose). A setting the target family cannot say is an error that names it, before anything is written.
// Memory: one dense tensor and one expert's share of it.
UpcycleResult upcycle(const UpcycleOptions& options);

}  // namespace pleat::exchange
