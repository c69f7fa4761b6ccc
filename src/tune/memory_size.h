// Bytes as people type them: "138GiB".
#pragma once

#include <cstdint>
#include <string_view>

namespace pleat::tune {

// A number and a unit: B; KiB, MiB, GiB, TiB; kB, MB, GB, TB, of thousands. More than nothing, at most 1024 TiB; parts of a
// byte are cut. Throws with `option` in front where it is none.
int64_t memory_size(std::string_view text, std::string_view option);

}  // namespace pleat::tune
