// The largest sizes the kernels take, said once: kernels size their arrays by these numbers, and whoever reads
// a configuration refuses what is beyond them before anything is built (config/validate_device.cpp,
// model/mesh_rules.cpp). So a configuration can be judged for a GPU by a program that was built without one.
#pragma once

#include <cstdint>
#include <limits>

namespace pleat::program {

constexpr int64_t kMaxHeadDim = 256;  // of queries and keys, and of values
constexpr int64_t kMaxExperts = 4096;
// Of a microbatch on one rank. Row numbers are 32-bit in every kernel.
constexpr int64_t kMaxTokens = (int64_t{1} << 30) - 1;
constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max();

// On a GPU only.
constexpr int64_t kMaxGpuGroups = 32;    // moe.num_groups: a lane each
constexpr int64_t kMaxGpuChoices = 32;   // moe.top_k where experts lie on several ranks: a lane each
constexpr int64_t kMaxGpuExperts = 415;  // of one rank in bfloat16: their offsets lie beside the tiles
constexpr int64_t kMaxWindowRanks =
    128;  // that share experts through windows: a launch takes an address of each
// Of 16 bytes each, or single numbers where rows are no multiple of that: threads are counted in 32 bits.
constexpr int64_t kMaxGpuVectors = (int64_t{1} << 31) - 1;

}  // namespace pleat::program
