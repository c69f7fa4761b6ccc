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
// permute_codes    Rows of codes and scales, taken as permute and combine's backward take numbers (kernels/dispatch): a
//                  code depends on its row alone, so a row that goes to several experts is coded once. Filler has codes
//                  0 and scales 1, which is what zeros become.
//
// counts and largest: of the numbers that are not 0, how many there are, how many saturated (a finite number past the
// largest value took its code), were flushed (became 0) and became NaN; and the largest finite |x|. Neither is a part of
// the codes. Under recipe fp8 nothing saturates. Column codes of row codes are not counted again.
//
// x f32 or f64; codes e4m3, scales f32. One code depends on its block alone: bits do not depend on threads.
#pragma once

#include "kernels/bind.h"
#include "tensor/recipe.h"
