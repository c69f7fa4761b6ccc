#include "data/tokenizer/text_pattern.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace pleat::data {

TextPattern::TextPattern(const Json& json, const std::string& where, Empty empty) {
  only_keys(json, {"String", "Regex"}, where);
  if (json.size() != 1) base::fail("{}: a pattern is either a String or a Regex", where);
  if (json.contains("Regex")) {
    regex_ = std::make_unique<Regex>(string_at(json, "Regex", where), PatternDialect::Oniguruma, where);
    return;
  }
  literal_ = string_at(json, "String", where);
  if (literal_.empty() && empty == Empty::Refused) base::fail("{}: an empty pattern string", where);
  if (literal_.empty()) regex_ = std::make_unique<Regex>("", PatternDialect::Oniguruma, where);
}

}  // namespace pleat::data
