// Character classes of other libraries' patterns, written again for PCRE2.
//
// Oniguruma and Rust nest classes, intersect them with && and put complements inside them; PCRE2 10.42 has
// none of this. A class becomes an expression that matches exactly one character: a plain class where that
// says it all, otherwise plain classes joined by look-ahead (intersection, complement) and by an atomic
// alternation (union), so that nothing can be tried twice.
#pragma once

#include <string>
#include <vector>

namespace pleat::data {

// The members of one class as they are read, and what they mean in the end.
class CharacterClass {
 public:
  explicit CharacterClass(bool negated) : negated_(negated) {}

  // `inside` is the inside of a PCRE2 class: "a-z", "\p{L}\x{10d40}".
  void add_set(const std::string& inside) { unions_.back().set += inside; }
  void add_complement(const std::string& inside) { unions_.back().others.push_back("[^" + inside + "]"); }
  void add_class(const CharacterClass& nested);
  // What is added from here on is intersected with what was added before.
  void intersect() { unions_.emplace_back(); }

  // True when nothing was added since the start or the last intersect().
  bool last_is_empty() const { return unions_.back().set.empty() && unions_.back().others.empty(); }
  // True where one class of PCRE2 says it.
  bool is_plain() const { return unions_.size() == 1 && unions_[0].others.empty(); }

  // Matches one character.
  std::string expression() const;

 private:
  struct Union {
    std::string set = {};
    std::vector<std::string> others = {};  // each matches one character
    std::string expression() const;
  };
  bool negated_;
  std::vector<Union> unions_ = std::vector<Union>(1);
};

}  // namespace pleat::data
