// Attention proper, between the rotated projections and the output projection, for both kinds of attention.
// With several context ranks each holds some rows of every sequence, and keys and values of all rows have to
// meet the queries.
#pragma once

#include "model/decoder.h"

namespace pleat::model {

// Reads s.rotated (this rank's heads of this rank's rows), writes s.attended.
void core_attention_forward(Decoder& d, int mb, int layer, ValueId sinks);
// From the gradient of s.attended to the gradient of s.rotated.
void core_attention_backward(Decoder& d, int mb, int layer, ValueId d_attended, ValueId d_rotated,
                             ValueId sinks, ValueId d_sinks);

}  // namespace pleat::model
