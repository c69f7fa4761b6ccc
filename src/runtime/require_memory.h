// What cannot fit is refused before anything is allocated, with who takes most of it.
#pragma once

#include <cstdint>
#include <string>

#include "interpret/plan/plan.h"

namespace pleat::runtime {

// "activations 40.1 GiB, optimizer 22.0 GiB, weights 9.3 GiB": at the peak, largest first.
std::string largest_owners(const interpret::OwnerBytes& at_peak);

// Of one rank: `plan` is the largest of its programs'. Throws where the memory of `what` ("a GPU", "the host") has fewer
// bytes free than are needed; less than 0: nobody knows, and the allocation will tell.
void require_memory(const interpret::Plan& plan, int64_t needed_bytes, int64_t free_bytes,
                    const std::string& what);

}  // namespace pleat::runtime
