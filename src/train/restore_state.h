// A checkpoint into the state of a run, which may keep its numbers in other element types: what a GPU trained
// in bf16 goes on in float32 on the CPU, and the other way round.
//
// A weight is taken in its widest form: narrow ones together with what rounding left (tensor/halves.h), which
// a checkpoint keeps beside them as "NAME.rest". A moment in codes (tensor/block_codes.h) has its scales beside it, as
// "NAME.scale".
#pragma once

#include <map>
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

  // `parts` and `out` are in bytes of `dtype`, the type this run has it in. A few MiB at a time.
  void read(const std::string& name, tensor::Dtype dtype, std::span<const checkpoint::Part> parts,
            const checkpoint::Bytes& out);

 private:
  friend void restore_state(const checkpoint::Loaded& loaded, std::span<const checkpoint::Target> targets);
  PartRestorer(const checkpoint::Loaded& loaded, std::map<std::string, tensor::Dtype> wanted)
      : loaded_(loaded), wanted_(std::move(wanted)), reader_(loaded), second_reader_(loaded) {}

  const checkpoint::Loaded& loaded_;
  std::map<std::string, tensor::Dtype> wanted_;
  checkpoint::PartReader reader_,
      second_reader_;  // two: numbers and what belongs to them are read side by side
};

}  // namespace pleat::train
