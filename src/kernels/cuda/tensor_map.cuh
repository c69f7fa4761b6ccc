// Descriptions of matrices for the copy engine: 2 or 3 dimensions, innermost contiguous, boxes with or
// without 128-byte swizzle. Kernels take them as __grid_constant__ parameters.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace pleat::kernels::cuda {

struct MapShape {
  // Elements per dimension, innermost first; z = 1 and box_z = 1 for a matrix.
  int64_t x = 1, y = 1, z = 1;
  int box_x = 64, box_y = 64;
  bool three = false;  // describe z too
  tensor::Dtype dtype = tensor::Dtype::BF16;
  // Elements from one y, and from one z, to the next; 0: they lie back to back.
  int64_t stride_y = 0, stride_z = 0;
  bool swizzled = true;  // else a box lies as it is, up to 256 elements wide
};

// bf16, f32 or codes of 8 bits at `data` (16-byte aligned; bytes of the strides divisible by 16; a box of 128 bytes where
// it is swizzled). What a
// box holds past the sizes reads as zero. Throws base::Error when the driver refuses.
CUtensorMap tensor_map(const void* data, const MapShape& shape);

}  // namespace pleat::kernels::cuda
