#include "base/host_name.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

namespace pleat::base {

std::string host_name() {
  char name[65] = {};
  if (gethostname(name, sizeof name - 1) != 0) std::strcpy(name, "?");
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  return fmt::format("{} {}", name, boot.substr(0, 13));
}

}  // namespace pleat::base
