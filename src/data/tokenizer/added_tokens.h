// Tokens found in text as they are spelled, before the model sees it: at each place the longest, leftmost
// first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pleat::data {

struct AddedToken {
  int32_t id = 0;
  std::string content = {};
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes white space before it along
  bool rstrip = false;
  bool normalized = true;  // looked for in normalized text
  bool special = false;
};

class AddedTokenMatcher {
 public:
  // Finds tokens[i] wherever spellings[i] stands; an empty spelling is never found. Of equal spellings the
  // first counts.
  AddedTokenMatcher(const std::vector<AddedToken>& tokens, const std::vector<std::string>& spellings);

  bool empty() const { return nodes_.size() == 1; }

  // visit(begin, end, id) over the whole text, id -1 for what is no added token. Where wanted(id) is false
  // the spelling is text like any other. `text` is valid UTF-8.
  template <class Wanted, class Visit>
  void for_each_part(std::string_view text, const Wanted& wanted, const Visit& visit) const {
    size_t done = 0;
    if (!empty()) {
      for (size_t at = next_start(text, 0); at < text.size();) {
        size_t end = 0;
        const int32_t token = longest_at(text, at, end);
        if (token < 0) {
          at = next_start(text, at + 1);
          continue;
        }
        size_t begin = at, stop = end;
        at = next_start(text, end);
        if (!wanted(tokens_[static_cast<size_t>(token)].id)) continue;
        if (!widen(text, done, tokens_[static_cast<size_t>(token)], begin, stop)) continue;
        if (done < begin) visit(done, begin, -1);
        visit(begin, stop, tokens_[static_cast<size_t>(token)].id);
        done = stop;
      }
    }
    if (done < text.size()) visit(done, text.size(), -1);
  }

 private:
  struct Node {
    std::vector<std::pair<unsigned char, int32_t>> children = {};
    int32_t token = -1;
  };

  // The next place at or after `at` where some token could start.
  size_t next_start(std::string_view text, size_t at) const {
    while (at < text.size() && !starts_[static_cast<unsigned char>(text[at])]) ++at;
    return at;
  }
  int32_t longest_at(std::string_view text, size_t at, size_t& end) const;
  // Applies the token's flags to its match; false when the match does not count.
  static bool widen(std::string_view text, size_t done, const AddedToken& token, size_t& begin, size_t& end);
  int32_t child_of(int32_t node, unsigned char byte) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  bool starts_[256] = {};
};

inline constexpr size_t kMaxAddedTokenBytes = 4096;

}  // namespace pleat::data
