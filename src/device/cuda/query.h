// Whether a lane has done all that was put on it, without waiting; throws what the device has to complain about.
#pragma once

#include "device/cuda/cuda.h"

namespace pleat::device::cuda {

bool is_done(const Lane& lane);

}  // namespace pleat::device::cuda
