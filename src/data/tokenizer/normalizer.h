// The "normalizer" of a tokenizer.json: what happens to text before anything else looks at it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer/json_fields.h"
#include "data/tokenizer/regex.h"

namespace pleat::data {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // `text` is valid UTF-8 and so is the result; empty text stays empty.
  virtual void apply(std::string& text, Regex::Workspace& workspace) const = 0;
  // True when the first character may be removed, so that what is left no longer starts where the text does.
  virtual bool may_remove_start() const { return false; }
  // How many times the text is spelled in GPT-2's alphabet, which may double it each time.
  virtual size_t num_spellings() const { return 0; }
};

// Null for JSON null. Throws, naming the part, for what is not supported.
std::unique_ptr<Normalizer> make_normalizer(const Json& json, const std::string& where);

}  // namespace pleat::data
