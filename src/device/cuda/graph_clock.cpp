#include "device/cuda/graph_clock.h"

#include "device/cuda/check.h"

namespace pleat::device::cuda {
namespace {

// Recorded the plain way, the event would be an edge of the capture, and no launch would set it.
void record_as_node(const Event& event, Lane& lane) {
  PLEAT_CUDA(cudaEventRecordWithFlags(static_cast<cudaEvent_t>(event.handle()), lane.stream(),
                                      cudaEventRecordExternal));
}

}  // namespace

void GraphClock::start(Lane& lane) { record_as_node(start_, lane); }
void GraphClock::stop(Lane& lane) { record_as_node(stop_, lane); }

}  // namespace pleat::device::cuda
