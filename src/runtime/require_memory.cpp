#include "runtime/require_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace pleat::runtime {
namespace {

std::string gib(int64_t bytes) { return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30)); }

}  // namespace

std::string largest_owners(const interpret::OwnerBytes& at_peak) {
  std::vector<size_t> order(at_peak.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return at_peak[a] > at_peak[b]; });
  std::string out;
  for (size_t i = 0; i < 3 && at_peak[order[i]] > 0; ++i)
    out += fmt::format("{}{} {}", i == 0 ? "" : ", ", name_of(static_cast<program::Owner>(order[i])),
                       gib(at_peak[order[i]]));
  return out;
}

void require_memory(const interpret::Plan& plan, int64_t needed_bytes, int64_t free_bytes,
                    const std::string& what) {
  if (free_bytes < 0 || needed_bytes <= free_bytes) return;
  base::fail_with(
      base::ExitCode::Hardware,
      "the step does not fit: a rank needs {}, {} has {} free, {} too little; largest owners: {}. "
      "Nothing was allocated. `pleat plan` shows all of it; recompute.modules, fewer tokens in a "
      "microbatch, or more ranks make it smaller",
      gib(needed_bytes), what, gib(free_bytes), gib(needed_bytes - free_bytes), largest_owners(plan.at_peak));
}

}  // namespace pleat::runtime
