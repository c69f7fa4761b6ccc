#include "data/tokenizer/text_pattern.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace pleat::data {

TextPattern::TextPattern(const Json& json, const std::string& where) {
  only_keys(json, {"String", "Regex"}, where);
  if (json.size() != 1) base::fail("{}: a pattern is either a String or a Regex", where);
  if (json.contains("Regex")) {
    regex_ = std::make_unique<Regex>(string_at(json, "Regex", where), PatternDialect::Oniguruma, where);
    return;
  }
  literal_ = string_at(json, "String", where);
  if (literal_.empty()) base::fail("{}: an empty pattern string", where);
}

}  // namespace pleat::data
