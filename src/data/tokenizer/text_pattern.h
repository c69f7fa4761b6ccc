// What `Split` and `Replace` of a tokenizer file look for: a plain string or a regular expression.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer/json_fields.h"
#include "data/tokenizer/regex.h"

namespace pleat::data {

class TextPattern {
 public:
  // What the string "" means.
  enum class Empty { Refused, FitsEverywhere };

  // From {"String": "..."} or {"Regex": "..."}.
  TextPattern(const Json& json, const std::string& where, Empty empty = Empty::Refused);

  // visit(begin, end, is_match) over the whole text.
  template <class Visit>
  void for_each_part(std::string_view text, Regex::Workspace& workspace, const Visit& visit) const {
    if (regex_) {
      pleat::data::for_each_part(*regex_, text, workspace, visit);
      return;
    }
    size_t done = 0;
    for (size_t at = text.find(literal_); at != std::string_view::npos; at = text.find(literal_, done)) {
      if (at > done) visit(done, at, false);
      visit(at, at + literal_.size(), true);
      done = at + literal_.size();
    }
    if (done < text.size()) visit(done, text.size(), false);
  }

 private:
  std::string literal_;
  std::unique_ptr<Regex> regex_;
};

}  // namespace pleat::data
