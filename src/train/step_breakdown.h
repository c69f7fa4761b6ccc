// Where the time of one training step went, by class of work.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "interpret/trace/timeline.h"

namespace pleat::train {

// Seconds inside the stages of attention, router, dispatch, experts (shared ones too), combine, head,
// optimizer and other (embedding, dense layers), in this order and all of them; where codes of few
// bits are made "codes", which then is in no other class; then "host gaps": what of `step_seconds`, the wall time of
// the step, no stage covers. Stages of lanes that run side by side count in full, so classes may add up to more than
// the step; gaps count once.
std::vector<std::pair<std::string, double>> step_breakdown(const interpret::Breakdown& timed,
                                                           double step_seconds);

}  // namespace pleat::train
