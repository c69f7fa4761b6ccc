// SentencePiece's own `.model` files, through its library.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer/text_tokenizer.h"

namespace pleat::data {

// `file` is the whole file, `path` its name in messages. EncodeOptions::add_special_tokens puts the begin
// token in front where the model has one. The model's end token ends documents.
std::unique_ptr<TextTokenizer> read_sentencepiece(std::string_view file, const std::string& path);

}  // namespace pleat::data
