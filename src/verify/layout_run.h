// Some steps of a model under a layout, on thread ranks, with everything that can be compared put back
// together as logical tensors.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/mesh.h"
#include "model/parameters.h"
#include "runtime/rank_setup.h"
#include "schedule/build.h"
#include "verify/batch.h"
#include "verify/faults.h"

namespace pleat::verify {

using Tensor = std::vector<double>;
// The experts every token of a step chose: "mb0.L1", [tokens, top_k], rows in natural order.
using Routing = std::map<std::string, std::vector<int32_t>>;

struct LayerResults {
  std::vector<int64_t> load;
  std::vector<float> bias;  // of the experts behind the step, where it balances them; the same on all ranks
  std::vector<double> losses;
  int64_t dropped = 0;
};

struct StepResults {
  double loss = 0, norm = 0, clip = 0;
  std::map<std::string, Tensor> gradients;  // of what is not frozen
  std::map<int, LayerResults> layers;
  std::vector<int64_t>
      code_counts;  // how codes of few bits fared (program/code_rows.h); the same on all ranks
  std::vector<double> code_largest;
  bool committed = true, rerun = false;  // whether the weights changed; by the program with room for all rows
  std::map<std::string, Tensor> weights;  // RunOptions::weights_each_step; of narrow ones what AdamW moves
  std::map<std::string, Tensor> stored;   // and what products see, the same on all ranks
  std::map<std::string, Tensor> taps;     // RunOptions::taps, "mb0.L1.x_out", rows in natural order
  Routing routing;                        // RoutingUse::Record
};

struct LayoutRun {
  std::vector<StepResults> steps;
  // After the last step; states of the optimizer that are numbers, by their names (model/state.h).
  std::map<std::string, Tensor> weights, stored;
  std::map<std::string, std::map<std::string, Tensor>> states;
  std::map<std::string, Tensor> initial;            // RunOptions::weights_each_step: before the first step
  std::map<std::string, program::AttrSet> updates;  // of every weight that is moved: the attrs of its update
};

struct RunOptions {
  int64_t num_steps = 3;
  uint64_t seed = 1;
  Fault fault = Fault::None;
  std::vector<Batch> batches;  // one per step; empty: random ones
  // The initial value of an element of a logical tensor, from what it would be.
  std::function<double(const model::Parameter&, int64_t element, double initial)> weight;
  // Each rank's part of the gradients, element by element of its own tensor; with it the microbatches are
  // left out, and only what follows the last of them runs: reductions, norm, clip, update.
  std::function<double(const model::Parameter&, const runtime::RankPlace&, int64_t element)> gradient;
  bool weights_each_step = false;
  uint64_t delay_seed = 0;        // other than 0: lanes are threads that wait before each stage, as it says
  bool poison = false;            // memory that is not alive is overwritten, stage by stage
  std::vector<std::string> taps;  // values [rows of this rank, any] of a layer, by their names there
  model::RoutingUse routing = model::RoutingUse::Choose;
  std::vector<Routing> replay;  // RoutingUse::Replay: StepResults::routing of a run, for all steps or of each
  // On the CPU in float32: whatever model.dtype = "bfloat16" would store in bfloat16 is rounded to it
  // (verify/narrow.h). Weights stay as they are.
  bool narrow = false;
  // On the CPU: the programs of ranks whose calls are enqueued, each run by one thread in list order. All exchanges of a
  // rank are then one chain, and messages are rendezvous: nothing is buffered.
  bool one_chain = false;
  // For mesh.pieces > 1: the layout whose ranks the pieces stand for.
  model::Mesh pieces_of = {};
};

// `config` must be resolved, and its device.kind says where the ranks run (on a GPU all share one); roles:
// one per pipeline rank, empty for the whole model on each. Throws when ranks that hold the same element
// disagree about it, and when a step needs more rows than moe.token_budget has room for and moe.overflow is
// "stop".
LayoutRun run_layout(const config::Config& config, const model::Mesh& mesh,
                     const std::vector<model::Role>& roles, const RunOptions& options);

}  // namespace pleat::verify
