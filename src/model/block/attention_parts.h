// The parts of the two attention blocks that whole sequences and cached generation share.
#pragma once

#include "model/decoder.h"

namespace pleat::model {

// Norm, projection, QK norm and rotation; the packed rows q|k|v are Saved::rotated.
void attention_input(Decoder& d, int mb, int layer, ValueId x);

// Norm, queries, the normed compressed keys and values (Saved::kv_normed) and the key's rotary part, not yet
// rotated.
struct LatentInput {
  ValueId query = kNoValue, key_rope = kNoValue;
};
LatentInput latent_attention_input(Decoder& d, int mb, int layer, ValueId x);
// `parts`: over how many ranks the heads are cut.
program::AttrSet latent_attrs(const config::ModelConfig& model, int64_t parts = 1);

// Output projection of Saved::attended, added to the block's input; of both kinds.
ValueId attention_output(Decoder& d, int mb, int layer);

}  // namespace pleat::model
