#include "runtime/require_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "report/format.h"

namespace pleat::runtime {
namespace {

std::string bytes_text(int64_t bytes) { return report::format_bytes(static_cast<double>(bytes)); }

}  // namespace

std::string largest_owners(const interpret::OwnerBytes& at_peak) {
  std::vector<size_t> order(at_peak.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return at_peak[a] > at_peak[b]; });
  std::string out;
  for (size_t i = 0; i < 3 && at_peak[order[i]] > 0; ++i)
    out += fmt::format("{}{} {}", i == 0 ? "" : ", ", name_of(static_cast<program::Owner>(order[i])),
                       bytes_text(at_peak[order[i]]));
  return out;
}

std::string host_parts(int64_t pinned_bytes, int64_t staging_bytes) {
  return fmt::format("{} pinned, {} staging", bytes_text(pinned_bytes), bytes_text(staging_bytes));
}

void require_memory(const interpret::Plan& plan, int64_t needed_bytes, const MemoryRoom& room,
                    int64_t num_alike, const std::string& parts) {
  const bool alone = room.free_bytes >= 0 && needed_bytes > room.free_bytes;
  const bool together = room.all_bytes >= 0 && needed_bytes > room.all_bytes / num_alike;
  if (!alone && !together) return;
  const bool mostly_state = plan.at_peak[static_cast<size_t>(program::Owner::Activations)] < needed_bytes / 2;
  const std::string of_it = parts.empty() ? "" : fmt::format(" ({})", parts);
  const std::string has =
      alone ? fmt::format("a rank needs {}{}, {} has {} free, {} too little", bytes_text(needed_bytes), of_it,
                          room.what, bytes_text(room.free_bytes), bytes_text(needed_bytes - room.free_bytes))
            : fmt::format("{} ranks of this process need {} each{}, {} is {} in all", num_alike,
                          bytes_text(needed_bytes), of_it, room.what, bytes_text(room.all_bytes));
  base::fail_with(
      base::ExitCode::Hardware,
      "the step does not fit: {}; largest owners: {}. Nothing was allocated. `pleat plan` shows all of it; "
      "{}",
      has, largest_owners(plan.at_peak),
      mostly_state
          ? "weights, gradients and states of the optimizer are most of it: bfloat16 "
            "(optimizer.grad_dtype, moment1_dtype, moment2_dtype), a smaller model, or ranks on more "
            "machines make it smaller"
          : "recompute.modules, on a GPU offload.modules, moe.token_budget or fewer tokens in a microbatch "
            "make it "
            "smaller");
}

}  // namespace pleat::runtime
