// Tokens that auxiliary losses had better not count. Those losses count each token's experts by its logits, and where
// the last one that is counted and the first one that is not are closer than roundings can tell, two runs count
// differently: a whole token in an expert's load, which no bound on roundings covers. Such tokens are taken out of
// the batch as padding is: they pass through the model and are in no loss and no count.
#pragma once

#include "verify/layout_run.h"

namespace pleat::verify {

// Takes them out of `batches`, one per step; how many are taken out now. `narrow` and `wide`: one rank in the precision
// that is verified and in float64, with these batches and the tap "router_logits".
int64_t take_out_close_calls(const config::Config& config, const LayoutRun& narrow, const LayoutRun& wide,
                             std::vector<Batch>& batches);

}  // namespace pleat::verify
