// Room on a disk, asked before the first byte: that it is full is known then, not an hour later.
#pragma once

#include <cstdint>
#include <string>

namespace pleat::exchange {

// Throws (storage) where less than `num_bytes` are free in `folder`, which is there; `what` says what they are for.
// Silent where the system does not say.
void require_space(const std::string& folder, int64_t num_bytes, const char* what);

}  // namespace pleat::exchange
