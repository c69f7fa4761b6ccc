// A call's signature as a message of one size for all calls of a group, so that calls that do not match can
// still be compared. Stage names are cut to what fits.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/call.h"

namespace pleat::comm {

std::vector<std::byte> to_bytes(const Signature& signature, int group_size);
Signature from_bytes(const std::vector<std::byte>& bytes);

}  // namespace pleat::comm
