// The "decoder" of a tokenizer.json: spellings of tokens back to text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer/json_fields.h"
#include "data/tokenizer/regex.h"

namespace pleat::data {

class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  // Changes the spellings in place; the text is what is left, joined. With `keep_broken_utf8` bytes that are
  // no valid UTF-8 stay.
  virtual void apply(std::vector<std::string>& tokens, bool keep_broken_utf8,
                     Regex::Workspace& workspace) const = 0;
};

// Null for JSON null: tokens are then joined with spaces. Throws, naming the part, for what is not supported.
std::unique_ptr<TokenDecoder> make_decoder(const Json& json, const std::string& where);

}  // namespace pleat::data
