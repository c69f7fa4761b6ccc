// The last word on programs of several ranks before they run, are planned or simulated: they fit together, and in the
// way these ranks meet nothing can hang. `train`, `plan`, `explain` and `simulate` ask here and say the same.
#pragma once

#include <string>

#include "interpret/check/check_network.h"
#include "program/meeting.h"
#include "schedule/ranks.h"

namespace pleat::schedule {

// Throws where the programs do not fit together, and where ranks whose calls are enqueued would hang or mix up messages:
// their exchanges run one after the other, and messages have no names. The ring of waits is in the words.
interpret::NetworkReport require_runs_together(const interpret::Network& network, program::Meeting meeting);

// For people, one line: how these ranks meet and how often their hosts wait, at most, in a step. Empty where they meet
// on the host.
std::string meeting_text(const RankPrograms& ranks, program::Meeting meeting);
// Waits of the host in a step, of the pipeline stage that has most.
int host_waits_of(const RankPrograms& ranks);

}  // namespace pleat::schedule
