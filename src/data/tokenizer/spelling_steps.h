// Pre-tokenizers that spell text differently: Metaspace (a mark for the space) and ByteLevel (GPT-2's
// alphabet).
#pragma once

#include <memory>
#include <string>

#include "data/tokenizer/pre_tokenizer.h"

namespace pleat::data {

// Null where `type` is none of them. With `is_last` a ByteLevel leaves the spelling to the model.
std::unique_ptr<PreTokenizer> make_spelling_step(const std::string& type, const Json& json, bool is_last,
                                                 const std::string& where);

}  // namespace pleat::data
