// The link line of this test program holds the builders only; the four interpreters that judge what they
// build need nothing beyond src/program, so they are compiled in here.
#include "interpret/check/check.cpp"  // NOLINT(bugprone-suspicious-include)
#include "interpret/plan/plan.cpp"    // NOLINT(bugprone-suspicious-include)
#include "interpret/print/parse.cpp"  // NOLINT(bugprone-suspicious-include)
#include "interpret/print/print.cpp"  // NOLINT(bugprone-suspicious-include)
