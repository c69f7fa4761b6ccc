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

// Bytes of a rank of the fullest stage, and of the fullest node's host.
struct Figures {
  double step_ns = 0, device = 0, host = 0;
};
Figures plus(const Figures& a, const Figures& b);
Figures times(const Figures& a, double n);
Figures figures_of(const Measured& measured);

class Estimate {
 public:
  // Measures the space without any choice, and every choice of every family alone. Throws what the program refuses of the
  // first. A choice that is refused alone is tried beside one of another family, its partner; where none makes it
  // possible it is no choice. With its partner it is measured beside every choice of states and gradients, too: what is
  // freed at once cannot be narrower as well. Of choices made of others,
  // those that free no more than another one does in less time are none.
  Estimate(Space& space, const schedule::Ground& ground);

  const Measured& base() const { return base_; }
  int64_t num_measured() const { return num_measured_; }
  Figures of(const Candidate& candidate) const;
  // Whether a choice of the family makes microbatches of another size.
  bool resizes(size_t family) const {
    return std::any_of(micro_batch_[family].begin(), micro_batch_[family].end(),
                       [](double b) { return b != 1; });
  }
  // Whether a choice of the family needs a partner.
  bool has_partners(size_t family) const;
  // False where a choice of it has none of its partners in it.
  bool is_possible(const Candidate& candidate) const;
  // Whether `train` takes each of its choices on the device; what it says of all of them together is Measured::untrained.
  bool trains(const Candidate& candidate) const;
  // What one more layer of a family's choice changes.
  Figures per_layer(const Candidate& candidate, size_t family) const;

 private:
  struct At {
    size_t family, choice;
  };
  using Name = std::pair<size_t, std::string>;  // of a choice: its family, and what it is called there
  Name name_of(At at) const { return {at.family, space_.families[at.family].choices[at.choice].name}; }
  bool has(const Candidate& candidate, const Name& name) const;
  void try_with_partners(const schedule::Ground& ground, const std::vector<At>& refused,
                         std::vector<std::vector<bool>>& gone);
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
  std::vector<std::vector<bool>> trains_;         // of the same: `train` takes it by itself
  // Of a choice that is refused alone: those beside which it is not.
  std::map<Name, std::vector<Name>> partners_;
  // Of such a choice and another one: what both change less what each does.
  std::map<std::pair<Name, Name>, Figures> between_;
  // Of choices that lie beside the step, by family and name: numbers of layers and what the step takes more.
  std::map<std::pair<size_t, std::string>, std::vector<std::pair<int, double>>> times_;
};

}  // namespace pleat::tune
