// Any bytes are either a valid configuration, whose canonical text parses back to the same one, or refused
// with base::Error. The part after a NUL byte, if there is one, is fed in as --set arguments, one per line.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "config/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t nul = input.find('\0');
  std::vector<std::string> sets;
  if (nul != std::string_view::npos) {
    std::string_view rest = input.substr(nul + 1);
    while (!rest.empty() && sets.size() < 16) {
      const size_t end = rest.find('\n');
      sets.emplace_back(rest.substr(0, end));
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    }
  }
  // Set once the input was taken: from there on nothing may be refused.
  bool accepted = false;
  try {
    const auto config = pleat::config::parse(input.substr(0, nul), sets);
    accepted = true;
    const auto used = pleat::config::resolve(config);
    if (pleat::config::parse(pleat::config::to_toml(config)) != config) std::abort();
    if (pleat::config::parse(pleat::config::to_toml(used)) != used) std::abort();
    if (!pleat::config::differences(config, config).empty()) std::abort();
    pleat::config::resolved(config);
  } catch (const pleat::base::Error&) {
    if (accepted) std::abort();
  }
  return 0;
}
