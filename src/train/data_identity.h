// What the training data of a run is, as a text a checkpoint carries: going on with other data would train on
// samples twice or never.
#pragma once

#include <string>

#include "data/mixture.h"

namespace pleat::train {

// One line per source: counts, and a digest over every byte (data/fingerprint.h). `run_folder` keeps the
// digests.
std::string data_identity(const data::Mixture& mixture, const std::string& run_folder, int num_threads);

// Whether a checkpoint's text `saved` tells of the data `now` tells of. Checkpoints before 0.2.0 hold a digest
// of samples only: then the mixture's samples are looked at.
bool is_same_data(const std::string& saved, const std::string& now, const data::Mixture& mixture);

// What became of the data between two identities, for people.
std::string data_change(const std::string& saved, const std::string& now);

// How many sources an identity has.
size_t num_sources_in(const std::string& identity);

}  // namespace pleat::train
