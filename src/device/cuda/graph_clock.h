// The device's own time for a launch of a graph: two events that are nodes of it, its first and its last.
// Events around a launch would count the time the host needs for it as well.
#pragma once

#include "device/cuda/cuda.h"

namespace pleat::device::cuda {

class GraphClock {
 public:
  // Inside Graph::capture, on the lane it begins and ends with.
  void start(Lane& lane);
  void stop(Lane& lane);
  // Of the last launch of that graph; waits for it.
  double seconds() const { return Event::milliseconds(start_, stop_) / 1e3; }

 private:
  Event start_{true}, stop_{true};
};

}  // namespace pleat::device::cuda
