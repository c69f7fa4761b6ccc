// The config.json of an upcycled model, made from the dense one's: what the file said about tokens, lengths
// and types stays. Keys whose defaults differ between the two families are written out, because a key the
// dense file left to its family would be left to another family now.
#pragma once

#include "exchange/describe.h"
#include "exchange/upcycle.h"

namespace pleat::exchange {

// The family that holds `model_type` with experts; throws when there is none.
std::string_view upcycled_family(const family::FamilyConfig& dense);

// `dense.config` is resolved. The result is read back through its family and compared with the dense model's
// forward computation; what the target family cannot say is an error that lists it.
Description upcycled_config(const family::FamilyConfig& dense, const std::string& dense_json,
                            const UpcycleOptions& options);

}  // namespace pleat::exchange
