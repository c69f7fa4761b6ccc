// Counts allocations of 4 KiB and more between two points, by standing in front of malloc, and of a GPU's memory
// by what device/cuda says. Used to prove that a training step allocates nothing. What the driver and libraries of
// a GPU allocate on the host for themselves is counted apart, by name: no program can keep them from it. Linked
// into programs that ask; sanitizer builds have their own malloc, and there `available` is false.
#pragma once

#include <cstdint>
#include <string>

namespace pleat::base {

struct AllocationCount {
  bool available = false;
  int64_t large = 0;    // allocations >= 4096 bytes, on any thread; not the driver's
  int64_t largest = 0;  // bytes of the largest of them
  int64_t driver = 0;   // the same by the driver and libraries of a GPU
  std::string drivers;  // "libcuda.so.1, libcublasLt.so.13": who they were

  AllocationCount& operator+=(const AllocationCount& more);
};

void start_allocation_watch();
AllocationCount stop_allocation_watch();

// Memory that does not come from malloc, such as a GPU's.
void note_allocation(int64_t bytes);

}  // namespace pleat::base
