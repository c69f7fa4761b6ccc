// A checkpoint into the state of a run, which may keep its numbers in other element types: what a GPU trained
// in bf16 goes on in float32 on the CPU, and the other way round.
//
// A weight is taken in its widest form: narrow ones together with what rounding left (tensor/halves.h), which
// a checkpoint keeps beside them as "NAME.rest".
#pragma once

#include <set>
#include <span>
#include <string>

#include "checkpoint/load.h"

namespace pleat::train {

// Fills every target. Missing, extra and misshapen tensors are listed in one error; everything is verified
// before the first byte changes. Where types agree, bits do; a narrow weight and its rest
// are the two halves of the wide one.
void restore_state(const checkpoint::Loaded& loaded, std::span<const checkpoint::Target> targets);

// The same for a rank that holds parts of the state: the numbers it reads are those one rank would have.
class PartRestorer {
 public:
  // `state`: all tensors of the run, whoever holds them; throws as restore_state where the checkpoint does not fit.
  // It must have been verified, and outlives this.
  PartRestorer(const checkpoint::Loaded& loaded, std::span<const checkpoint::Expected> state);
  // For a new run from its weights: the checkpoint may hold more.
  static PartRestorer of_weights(const checkpoint::Loaded& loaded,
                                 std::span<const checkpoint::Expected> weights);
  // False for correction biases the checkpoint does not have; they begin as zero.
  bool has(const std::string& name) const;

  // `parts` and `out` are in bytes of `dtype`, the type this run has it in.
  void read(const std::string& name, tensor::Dtype dtype, std::span<const checkpoint::Part> parts,
            std::span<std::byte> out);

 private:
  friend void restore_state(const checkpoint::Loaded& loaded, std::span<const checkpoint::Target> targets);
  PartRestorer(const checkpoint::Loaded& loaded, std::set<std::string> names)
      : loaded_(loaded), names_(std::move(names)), reader_(loaded), rest_reader_(loaded) {}

  const checkpoint::Loaded& loaded_;
  std::set<std::string> names_;
  checkpoint::PartReader reader_, rest_reader_;  // two: a weight and its rest are read side by side
};

}  // namespace pleat::train
