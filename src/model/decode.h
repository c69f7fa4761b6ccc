// The model for use rather than training: new tokens over a cache (decode), and the likelihood of given
// tokens (score). Both are forward only; experts take every token whatever the capacity they were trained
// with, since a token's result must not depend on who else is in the batch.
#pragma once

#include "model/decoder.h"

namespace pleat::model {

struct DecodeShape {
  int64_t num_sequences = 1;  // B
  int64_t num_new = 1;        // P: rows per sequence and call
  int64_t max_length = 1;     // tokens a sequence may grow to
  bool all_logits = false;    // of every row; else of one row per sequence
};

// The config a forward-only program is built from: num_sequences x length tokens, dropless, routing by the
// router.
config::Config inference_config(const config::Config& config, int64_t num_sequences, int64_t length);

// Numbers per cached token of one layer, and how many tokens it keeps: keys and values of all key/value
// heads, or the compressed vector and the rotated key of latent attention; a layer with a window keeps no
// more than the window.
int64_t cache_width(const config::ModelConfig& model);
int64_t cache_capacity(const config::ModelConfig& model, int layer, int64_t max_length);
// Bytes of all layers' caches for one sequence.
int64_t cache_bytes(const config::ModelConfig& model, int64_t max_length);

// `d` must be declared for Purpose::Logits from inference_config(config, num_sequences, num_new). Caches are
// persistent values "LN.cache" [B, C, w], the same in every program of the same num_sequences and max_length.
// Inputs beside the usual ones: "lengths" and "num_new" i32[B] (kernels/cached_attention), and unless all
// logits are asked for "logit_rows" i32[B]: the row of each sequence whose logits are wanted (absent where
// num_new is 1). Result "mb0.logits", [B, V] or [B P, V].
void decode(Decoder& d, const DecodeShape& shape);

// One packed microbatch; inputs "mb0.labels", "mb0.loss_mask", results "log_prob" f64[T], "best" i32[T]
// (kernels/token_score).
void score(Decoder& d);

}  // namespace pleat::model
