// Samples into microbatches. The feed holds no state of its own but the position in the data.
#pragma once

#include "data/mixture.h"
#include "runtime/input_rows.h"
#include "runtime/step_inputs.h"

namespace pleat::train {

class Feed {
 public:
  Feed(const data::Mixture& mixture, int64_t micro_batch) : mixture_(mixture), micro_batch_(micro_batch) {}

  // The next microbatch; moves the position on and adds to `counts`.
  void read(data::MixturePosition& position, runtime::Microbatch& out, runtime::BatchCounts& counts) const;
  // Moves the position on without reading: the microbatch is another rank's.
  void skip(data::MixturePosition& position) const;
  // Rows that count nowhere.
  void blank(runtime::Microbatch& out) const;

 private:
  const data::Mixture& mixture_;
  int64_t micro_batch_;
};

}  // namespace pleat::train
