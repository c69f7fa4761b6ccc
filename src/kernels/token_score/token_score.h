// How likely given tokens are, and which token is the most likely one: kernel `token_score`
// (program/ops.def).
//
// log_prob[t] = logits[t, labels[t]] - log sum_v exp(logits[t, v]), the sum taken in double; best[t] is the
// id of the largest logit, of equal ones the lowest (NaN is passed over; -1 when all are NaN). Where mask is
// 0: 0 and -1, and the label is not looked at; elsewhere a label outside the vocabulary throws. Rows are
// independent, so bits do not depend on the number of threads.
#pragma once

#include "kernels/bind.h"
