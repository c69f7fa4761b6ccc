// The baseline every byte-level run is shown beside: a bigram model counted on the training data.
#pragma once

#include "data/indexed_dataset.h"

namespace pleat::train {

// Bits per byte on the validation stream of p(next | previous) = (count + 1/V) / (total + 1), counted on the
// training stream. Ends of documents are predicted and paid for like any token, but only bytes are counted as
// text. 0 when a stream holds an id that no byte has.
double bigram_bits_per_byte(const data::IndexedDataset& train, const data::IndexedDataset& valid);

}  // namespace pleat::train
