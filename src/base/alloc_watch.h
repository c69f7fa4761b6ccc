// Counts heap allocations of 4 KiB and more between two points, by standing in front of malloc. Used to prove
// that a training step allocates nothing. Linked into programs that ask; sanitizer builds have their own
// malloc, and there `available` is false.
#pragma once

#include <cstdint>

namespace pleat::base {

struct AllocationCount {
  bool available = false;
  int64_t large = 0;    // allocations >= 4096 bytes, on any thread
  int64_t largest = 0;  // bytes of the largest of them
};

void start_allocation_watch();
AllocationCount stop_allocation_watch();

}  // namespace pleat::base
