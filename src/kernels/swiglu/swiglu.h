// Gated activation of packed gate | up, silu or clamped by attr activation (activation.h has the formulas).
//
//   forward         gu [T,2f] (gate in [0,f), up in [f,2f))  ->  a [T,f]
//   backward_input  da [T,f], gu  ->  dgu [T,2f]; for silu dgate = da up s (1 + gate (1 - s)),
//                   dup = da gate s, s = sigmoid(gate)
//
// Float or double, elementwise. dgu may be gu itself; nothing else overlaps.
#pragma once

#include "kernels/bind.h"
