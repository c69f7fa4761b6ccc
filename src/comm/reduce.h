// The one order of sums (communicator.h), shared by all back ends that reduce themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/call.h"

namespace pleat::comm {

// outs[k][i] = reduction over r ascending of ins[r][i], for every k; the bits of an element depend on nothing
// but its inputs. An out may be one of the ins. No allocation.
void reduce_in_order(std::span<const std::byte* const> ins, std::span<std::byte* const> outs, int64_t count,
                     tensor::Dtype dtype, Reduce reduce);

}  // namespace pleat::comm
