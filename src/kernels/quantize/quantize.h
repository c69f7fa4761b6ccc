// Numbers to codes of few bits, block by block: a block has one scale s, and its codes are round(x / s) (tensor/few_bits.h).
// Argument lists and layouts are in program/ops.def, recipes in tensor/recipe.h. Here is recipe fp8; the others have no kernels.
//
// quantize         Rows: a block is 128 numbers of a row, fewer at its end. s = 2^e with the least e for which the largest
//                  |x| of the block does not saturate; 1 for a block of zeros. A number that is not finite becomes NaN
//                  and is left out of the largest; so does one past 448 x 2^127, which a float64 model may have.
// turn_codes       Columns from rows: v = code x s is exact; a block is 128 rows of one column, its scale found the same
//                  way from the v of the block, its codes round(v / s'). s' is a power of two as s is, so a code changes
//                  only where v / s' falls below the normal range of E4M3. With offsets each expert's rows begin at a
//                  multiple of 128; codes of rows that do not exist are 0.
// quantize_weight  Blocks of 128 x 128 share one scale, found the same way. Codes of the transpose are the transposed
//                  codes, its scales the transposed scales.
//
// x f32 or f64; codes e4m3, scales f32. One code depends on its block alone: bits do not depend on threads.
#pragma once

#include "kernels/bind.h"
#include "tensor/recipe.h"
