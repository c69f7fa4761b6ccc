// Normalizers that drop characters or spell them differently: Strip, StripAccents, ByteLevel.
#pragma once

#include <memory>
#include <string>

#include "data/tokenizer/normalizer.h"

namespace pleat::data {

// Null where `type` is none of them.
std::unique_ptr<Normalizer> make_text_filter(const std::string& type, const Json& json,
                                             const std::string& where);

}  // namespace pleat::data
