// Which messages are one call where a rank has a single queue for all its exchanges: enqueued groups (program/meeting.h),
// and the strict form of check.
#pragma once

#include <utility>
#include <vector>

#include "program/order.h"

namespace pleat::program {

// Per stage the first and the end of the messages that are one call with it: those beside it in the list, on other
// lanes, none of which waits for another of them. Both ends may then come in any order. A stage that is no message is
// alone.
std::vector<std::pair<StageId, StageId>> message_calls(const Program& program, const EdgeList& edges);

}  // namespace pleat::program
