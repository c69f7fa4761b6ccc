// Rows to experts and back through windows (kernels/windows/windows.h): every exchange is a stage that stores into the
// others' memory, a meeting, and a stage that reads what has arrived. Values in windows are of one microbatch and layer
// here; the pass "windows" gives all of a kind one place (schedule/pass/windows.h).
#pragma once

#include "model/block/moe.h"

namespace pleat::model {

// Reads the plan, s.all_offsets and s.mlp_normed; sets s.rows, s.row_probs and s.expert_offsets.
void windows_dispatch(Decoder& d, Saved& s);
// What the experts gave each token of this rank.
ValueId windows_combine(Decoder& d, const Saved& s, ValueId out_rows);
// The gradient of the experts' rows.
void windows_combine_backward(Decoder& d, const Saved& s, ValueId dy, ValueId d_out_rows);
void windows_dispatch_backward(Decoder& d, const Saved& s, ValueId d_rows, ValueId d_row_probs,
                               const DispatchGradients& out);

}  // namespace pleat::model
