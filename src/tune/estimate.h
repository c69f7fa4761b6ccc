// What a candidate would take, guessed from the few that were measured: every choice by itself, added up.
//
// It orders the search and nothing else: what is said of a candidate was measured (tune/measure.h).
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tune/choice.h"
#include "tune/measure.h"

namespace pleat::tune {

struct Figures {
  double step_ns = 0, device = 0,
         host = 0;  // bytes of a rank of the fullest stage, and of the fullest node's host
};
Figures figures_of(const Measured& measured);

class Estimate {
 public:
  // Measures the space without any choice, and every choice of every family alone. Throws what the program refuses of the
  // first; a choice that is refused alone is none, and neither is one made of others that is
  // guessed to free no more than another one does in less time.
  Estimate(Space& space, const schedule::Ground& ground);

  const Measured& base() const { return base_; }
  int64_t num_measured() const { return num_measured_; }
  Figures of(const Candidate& candidate) const;
  // Whether a choice of the family makes microbatches of another size.
  bool resizes(size_t family) const {
    return std::any_of(micro_batch_[family].begin(), micro_batch_[family].end(),
                       [](double b) { return b != 1; });
  }
  // What one more layer of a family's choice changes.
  Figures per_layer(const Candidate& candidate, size_t family) const;

 private:
  // How much more a microbatch keeps than without any choice.
  double scale(const Candidate& candidate) const;
  Figures change(const Candidate& candidate, size_t family, double scale) const;

  const Space& space_;
  Measured base_;
  int64_t num_measured_ = 0;
  double large_ =
      1;  // size of the microbatch in which choices of microbatches were measured, against the base
  std::vector<std::vector<Figures>> changes_;     // by family and choice, in all of its layers
  std::vector<std::vector<double>> micro_batch_;  // of the same
  // Of choices that lie beside the step, by family and name: numbers of layers and what the step takes more.
  std::map<std::pair<size_t, std::string>, std::vector<std::pair<int, double>>> times_;
};

}  // namespace pleat::tune
