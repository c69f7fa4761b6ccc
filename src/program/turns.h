// The turns of a program: runs of stages in which one chunk computes the forward or the backward of one
// microbatch. Read off the list alone, so that what interpreters say about a schedule (grid, microbatches in
// flight, frames of the plan) is said about the program and not about whoever built it.
#pragma once

#include <vector>

#include "program/program.h"

namespace pleat::program {

struct Turn {
  StageId begin = 0, end = 0;      // stages [begin, end) of the list
  int microbatch = -1, chunk = 0;  // microbatch -1: stages of the step
  bool forward = true;             // false also where microbatch is -1
  int num_layers = 0;              // distinct layers in it
};

// Every stage is in exactly one turn. Where a forward and its backward follow each other, the backward begins
// behind the last stage of phase forward that is not a replay. A receive that stands ahead of the turn it is for,
// with others between, is counted to the turn it stands in.
std::vector<Turn> turns(const Program& program);

struct InFlight {
  int warm_up = 0;      // forwards before the first backward
  int most_chunks = 0;  // forwards whose backward is not finished, at most
  int most_layers = 0;  // the same counted in layers
};
InFlight in_flight(const std::vector<Turn>& turns);

}  // namespace pleat::program
