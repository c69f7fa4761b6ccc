// The best choices that fit and that `train` takes: best first by estimate (tune/estimate.h), each of them measured, until nothing that is left
// could be better.
//
// Candidates are ranked by the time of their step. What keeps values in fewer bits has to be worth it: for each such
// choice the step counts as longer by a given share. The order of work depends on the question alone, never on clocks or
// cores, so the answer does, unless the time limit is met.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "tune/choice.h"
#include "tune/estimate.h"
#include "tune/measure.h"

namespace pleat::tune {

struct SearchOptions {
  double worth = 0.05;   // what a choice that rounds must win of the step to be taken
  size_t rows = 6;       // of the answer: the best ones that differ in more than fine choices
  int64_t trials = 200;  // combinations that are planned and simulated for the answer, at most
  std::optional<std::chrono::steady_clock::time_point> deadline = {};
};

struct Found {
  Candidate candidate;
  Measured measured;
  double score = 0;  // step_ns, made longer for what rounds
};

struct Answer {
  // That fit, best first. What is another row with more techniques on top and no faster is left out; the best of those that round
  // least is always there.
  std::vector<Found> rows;
  std::vector<Found> nearest;  // where none fits: those that are least too large, least first
  // What `train` refuses on this device today, though it can be planned and simulated: rows that fit, best first, only those
  // better than the best row above; where none does and there is no row above, those least too large.
  struct NotYet {
    std::vector<Found> rows;
    bool fits = true;
  };
  NotYet not_yet;
  std::optional<Found> unlimited;  // the fastest if memory had no end, whatever it rounds
  Found plain;                     // without any choice
  int64_t num_combinations = 0;    // numbers of layers not counted
  int64_t num_measured = 0;
  bool complete = true;  // false: a limit came first
};

double score_of(const Space& space, const Candidate& candidate, double step_ns, double worth);

// The limits are the machine's. The space loses choices that are refused in it.
Answer search(Space& space, const schedule::Ground& ground, const SearchOptions& options);

}  // namespace pleat::tune
