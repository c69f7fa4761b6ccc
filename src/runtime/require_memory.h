// What cannot fit is refused before anything is allocated, with who takes most of it.
#pragma once

#include <cstdint>
#include <string>

#include "interpret/plan/plan.h"

namespace pleat::runtime {

// "activations 40.1 GiB, optimizer 22.0 GiB, weights 9.3 GiB": at the peak, largest first.
std::string largest_owners(const interpret::OwnerBytes& at_peak);

struct MemoryRoom {
  std::string what;  // "the GPU", "the machine's memory"
  // Less than 0: nobody knows, and the allocation will tell.
  int64_t free_bytes = -1, all_bytes = -1;
};
// Of a rank with a GPU, on its host: "57.4 GiB pinned, 128 MiB staging".
std::string host_parts(int64_t pinned_bytes, int64_t staging_bytes);

// Of one rank: `plan` is the largest of its programs'. Throws where fewer bytes are free than it needs, or where
// `num_alike` ranks that need as much cannot all have it: others of them may have theirs already, so they are
// compared with all there is. `parts`: what the bytes are, where that is not the plan's owners.
void require_memory(const interpret::Plan& plan, int64_t needed_bytes, const MemoryRoom& room,
                    int64_t num_alike = 1, const std::string& parts = "");

}  // namespace pleat::runtime
