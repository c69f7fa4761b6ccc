#include "train/memory.h"

#include <cstdlib>
#include <fstream>
#include <string>

namespace pleat::train {

ProcessMemory process_memory() {
  ProcessMemory out;
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("RssAnon:")) out.anonymous_bytes = std::atoll(line.c_str() + 8) * 1024;
    if (line.starts_with("VmHWM:")) out.peak_bytes = std::atoll(line.c_str() + 6) * 1024;
  }
  return out;
}

}  // namespace pleat::train
