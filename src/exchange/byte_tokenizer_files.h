// The byte tokenizer as files that Hugging Face's `tokenizers` and transformers load.
//
// A byte-level BPE without a single merge: every byte is a token, and the vocabulary gives it its own number. The
// ids are the byte tokenizer's for every text in UTF-8, with one exception: text that spells the end-of-document
// token is that token there, and plain bytes here.
#pragma once

#include <cstdint>
#include <vector>

#include "exchange/source_files.h"

namespace pleat::exchange {

// tokenizer.json and tokenizer_config.json. `max_length`: tokens the model was made for.
std::vector<SmallFile> byte_tokenizer_files(int64_t max_length);

}  // namespace pleat::exchange
