// Builders: a config becomes a program. One file per pipeline schedule; a builder decides the order of
// microbatches and nothing else. Techniques are passes over the result (schedule/pass).
#pragma once

#include "config/config.h"
#include "model/decode.h"
#include "model/decoder.h"
#include "program/program.h"

namespace pleat::schedule {

struct BuildOptions {
  model::RoutingUse routing = model::RoutingUse::Choose;
  model::Mesh mesh = {};
  std::optional<model::Role> role = {};  // absent: the whole model
};

// Throws where a step of this many microbatches is more than a program holds; before anything is built.
void require_writable(const config::Config& config, const model::Mesh& mesh);

// One optimizer step on one rank. order "1f1b": each microbatch forward, then backward, so that one
// microbatch's activations are alive at a time. order "gpipe": all forwards, then the backwards in the same
// order. "loop": the order of 1f1b, with three microbatches written down: the first, one that is repeated for all
// between (program/repeat.h), and the last. `config` must be resolved.
constexpr int kLoopMicrobatches = 3, kRepeated = 1;
program::Program build_training_step(const config::Config& config, const std::vector<model::Parameter>& table,
                                     const BuildOptions& options = {});

// The same for one rank of a pipeline: 1F1B, or interleaved when a rank holds several chunks. Called by
// build_training_step where mesh.pp > 1.
program::Program build_pipeline_step(const config::Config& config, const std::vector<model::Parameter>& table,
                                     const BuildOptions& options);

// One microbatch per data replica, forward only: the loss of all their tokens, on every rank.
program::Program build_evaluation(const config::Config& config, const std::vector<model::Parameter>& table,
                                  const BuildOptions& options = {});

// The same for one rank of a pipeline; called by build_evaluation.
program::Program build_pipeline_evaluation(const config::Config& config,
                                           const std::vector<model::Parameter>& table,
                                           const BuildOptions& options);

// No microbatch at all: the weights of this rank, whole from their owners. A training step begins with the
// same stages and leaves only what this rank owns up to date; whatever else reads weights runs this first.
program::Program build_gather(const config::Config& config, const std::vector<model::Parameter>& table,
                              const BuildOptions& options);

// `num_sequences` sequences, forward only: the logits of every position as result "mb0.logits".
program::Program build_logits(const config::Config& config, const std::vector<model::Parameter>& table,
                              int64_t num_sequences = 1);

// New tokens over a cache, forward only (model/decode.h).
program::Program build_decode(const config::Config& config, const std::vector<model::Parameter>& table,
                              const model::DecodeShape& shape);

// `num_tokens` packed tokens, forward only: the log-probability of each label.
program::Program build_score(const config::Config& config, const std::vector<model::Parameter>& table,
                             int64_t num_tokens);

// The same program without the optimizer's values, where no stage uses them: a model that is only run needs a
// third of the memory. Programs that went through this agree with each other on where the state lies.
program::Program without_optimizer_state(program::Program program);

// One MoE block of one microbatch alone, from the router to the combination, for measurements: what training
// runs between the norm and the residual stream. Input and output gradient are the persistent values "x" and
// "dy"; gradients of weights and input are written, nothing is updated. `config` has one layer, an MoE layer
// without shared experts and auxiliary losses.
enum class LayerPart : uint8_t { Forward, Both };
program::Program build_moe_layer(const config::Config& config, const std::vector<model::Parameter>& table,
                                 LayerPart part);

}  // namespace pleat::schedule
