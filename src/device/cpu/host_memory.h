// How much more memory of the host this process could have.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pleat::device {

struct AvailableMemory {
  int64_t bytes = -1;  // free now; -1: the system does not tell
  int64_t all = -1;    // if nobody else had any
  std::string limit;   // what sets it: "the machine's memory", "the limit of its control group", "ulimit -v"
};
AvailableMemory available_host_memory();

// Of the text of /proc/meminfo: free without the machine failing, and all, swap included; -1: it does not say.
int64_t available_of(std::string_view meminfo);
int64_t total_of(std::string_view meminfo);

}  // namespace pleat::device
