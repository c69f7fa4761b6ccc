// Pre-tokenizers that cut text and change nothing in it: Split, Whitespace, WhitespaceSplit, Punctuation,
// Digits, BertPreTokenizer, CharDelimiterSplit, FixedLength.
#pragma once

#include <memory>
#include <string>

#include "data/tokenizer/pre_tokenizer.h"

namespace pleat::data {

// Null where `type` is none of them.
std::unique_ptr<PreTokenizer> make_splitting_step(const std::string& type, const Json& json,
                                                  const std::string& where);

}  // namespace pleat::data
