// Keys of a config.json that describe the model without shaping it. Nothing is computed from them, so junk in
// them would pass without a word; a file with such junk is not what it says it is.
#pragma once

#include "family/config_reader.h"

namespace pleat::family {

// dtype (torch_dtype), architectures and layer_types; absent ones are fine. Throws naming the key, what it
// holds and what it may hold.
void check_description(const ConfigReader& reader, int64_t num_layers);

}  // namespace pleat::family
