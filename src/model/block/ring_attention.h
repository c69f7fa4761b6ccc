// Attention of context ranks as a ring: the keys and values of every rank pass by all others.
//
// Step s of n works on the keys of the rank s places back (part numbers the steps). They travel on a lane of
// their own, so that the next ones are on their way while the present ones are worked on; two buffers hold
// them (schedule/pass/ring_buffers.h). Backward sends them round again and behind them their gradient, to
// which each rank adds its part, owner first, and which is home after n steps. All ranks make the same calls
// in the same order: what a rank's queries may not see is masked, never skipped.
#pragma once

#include "model/decoder.h"

namespace pleat::model {

// Columns of this rank's heads.
struct AttentionWidths {
  int64_t q, k, v, out, heads;
};

// Reads s.rotated, writes s.attended (declared) and s.lse; keeps this rank's keys and values in s.context_kv.
void ring_forward(Decoder& d, int mb, int layer, ValueId sinks, const AttentionWidths& n);
void ring_backward(Decoder& d, int mb, int layer, ValueId d_attended, ValueId d_rotated, ValueId sinks,
                   ValueId d_sinks, const AttentionWidths& n);

}  // namespace pleat::model
