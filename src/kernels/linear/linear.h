// Linear layer: y = x w^T + bias + residual.
//
//   forward          x [T,in], w [out,in], bias [out]?, residual [T,out]?  ->  y [T,out]
//   backward_input   dy [T,out], w [out,in]  ->  dx [T,in] (+)= dy w
//   backward_weight  dy [T,out], x [T,in]    ->  dw [out,in] (+)= dy^T x;  dbias [out]? (+)= column sums of dy
//
// One element type (float or double) throughout. Products are summed by BLAS in that type, one call per tile
// of gemm_tiling(); dbias is summed in double over ascending rows. residual may be y itself; nothing else
// overlaps. The gradient of residual is dy, so no phase exists for it. Bits depend on the shape only.
#pragma once

#include <span>

#include "kernels/bind.h"
