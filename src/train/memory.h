// What a run really used, found without asking its plan.
#pragma once

#include <cstdint>

namespace pleat::train {

struct ProcessMemory {
  int64_t anonymous_bytes = 0;  // RssAnon: resident memory that belongs to no file
  int64_t peak_bytes = 0;       // VmHWM
};
ProcessMemory process_memory();  // zeros where the system does not tell

}  // namespace pleat::train
