// Opens whatever tokenizer a path holds.
#pragma once

#include <memory>
#include <string>

#include "data/tokenizer/text_tokenizer.h"

namespace pleat::data {

struct OpenTokenizerOptions {
  // The token that ends a document, by spelling or number. Empty: what the files say (for tokenizer.json the
  // eos_token of tokenizer_config.json, special_tokens_map.json, or the eos_token_id of config.json beside
  // it, in this order).
  std::string end_of_document = {};
  // Pattern and special tokens of a rank file (rank_files.h lists the families). Empty: by the file's name,
  // which must then be one of those its publishers use (qwen.tiktoken, cl100k_base.tiktoken, ...), or by the
  // tokenizer_config.json beside it, as Kimi's has one.
  std::string rank_family = {};
};

// "byte", a file, or a folder that holds tokenizer.json, tokenizer.model, tekken.json, tiktoken.model or one
// *.tiktoken file, looked for in this order. Files are told apart by name: tekken*.json, other .json,
// tiktoken.model, other .model (anything may follow), .tiktoken. "FAMILY:PATH" names the family of a rank
// file.
std::unique_ptr<TextTokenizer> open_tokenizer(const std::string& path,
                                              const OpenTokenizerOptions& options = {});

// The same name, good from any working directory.
std::string absolute_tokenizer(const std::string& path);

}  // namespace pleat::data
