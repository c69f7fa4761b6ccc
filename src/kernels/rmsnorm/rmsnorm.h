// Root-mean-square norm over the last dimension.
//
//   forward          x [T,h], w [h]  ->  y [T,h], rstd [T]:  rstd = 1 / sqrt(mean(x^2) + eps),  y = x rstd w
//   backward_input   dy [T,h], x, w, rstd, dresidual [T,h]?  ->  dx [T,h]
//                    dx (+)= dresidual + rstd dy w - x rstd^3 mean(dy w x)
//   backward_weight  dy, x, rstd  ->  dw [h] (+)= sum over t of dy x rstd
//
// Float or double; sums over a row and over t are in double, in an order fixed by the shape. attr eps
// (forward only). dresidual may be dx itself when dx is overwritten; nothing else overlaps.
#pragma once

#include "kernels/bind.h"
