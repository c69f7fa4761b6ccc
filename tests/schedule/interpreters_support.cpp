// The link line of this test program holds the builders only; what judges their programs here (four
// interpreters, the FLOP count) needs nothing beyond src/program and src/model, so it is compiled in.
#include "cost/flops.cpp"             // NOLINT(bugprone-suspicious-include)
#include "interpret/check/check.cpp"  // NOLINT(bugprone-suspicious-include)
#include "interpret/plan/plan.cpp"    // NOLINT(bugprone-suspicious-include)
#include "interpret/print/parse.cpp"  // NOLINT(bugprone-suspicious-include)
#include "interpret/print/print.cpp"  // NOLINT(bugprone-suspicious-include)
