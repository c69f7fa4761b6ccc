// How much more memory of the host this process could have.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pleat::device {

struct AvailableMemory {
  int64_t bytes = -1;  // -1: the system does not tell
  std::string limit;   // what sets it: "the machine's memory", "the limit of its control group"
};
AvailableMemory available_host_memory();

// Of the text of /proc/meminfo: what can be had without the machine failing, swap included; -1: it does not say.
int64_t available_of(std::string_view meminfo);

}  // namespace pleat::device
