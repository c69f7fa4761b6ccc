#include "data/tokenizer/pattern_class.h"

namespace pleat::data {

void CharacterClass::add_class(const CharacterClass& nested) {
  if (nested.is_plain() && !nested.negated_)
    add_set(nested.unions_[0].set);
  else
    unions_.back().others.push_back(nested.expression());
}

std::string CharacterClass::Union::expression() const {
  if (others.empty()) return "[" + set + "]";
  if (set.empty() && others.size() == 1) return others[0];
  std::string all = "(?>";
  if (!set.empty()) all += "[" + set + "]|";
  for (const std::string& other : others) all += other + "|";
  all.back() = ')';
  return all;
}

std::string CharacterClass::expression() const {
  if (is_plain()) return (negated_ ? "[^" : "[") + unions_[0].set + "]";
  std::string all;
  for (size_t i = 1; i < unions_.size(); ++i) all += "(?=" + unions_[i].expression() + ")";
  all = all.empty() ? unions_[0].expression() : "(?:" + all + unions_[0].expression() + ")";
  return negated_ ? "(?:(?!" + all + ")(?s:.))" : all;
}

}  // namespace pleat::data
