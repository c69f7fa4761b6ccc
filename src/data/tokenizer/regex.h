// A compiled pattern (PCRE2, UTF and UCP, just-in-time compiled where the machine can).
//
// Matching uses a growing stack of its own, never the caller's, and gives up with an error where a pattern of
// a hostile file would take exponential time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer/pattern.h"

namespace pleat::data {

class Regex {
 public:
  // What one thread needs while it matches.
  class Workspace;

  Regex(std::string_view pattern, PatternDialect dialect, std::string_view where);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  struct Match {
    size_t begin = 0, end = 0;
  };

  // The first match at or after `at`; false when there is none. `text` must be valid UTF-8.
  bool find(std::string_view text, size_t at, Match& match, Workspace& workspace) const;

  const std::string& pattern() const { return pattern_; }

 private:
  struct Code;
  std::string pattern_;
  std::string where_;
  std::unique_ptr<Code> code_;
};

class Regex::Workspace {
 public:
  Workspace();
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

// Calls visit(begin, end, is_match) over the whole text, gaps between matches included. An empty match moves
// on by one character and is reported like any other.
template <class Visit>
void for_each_part(const Regex& regex, std::string_view text, Regex::Workspace& workspace,
                   const Visit& visit) {
  size_t done = 0, at = 0;
  Regex::Match match;
  while (at <= text.size() && regex.find(text, at, match, workspace)) {
    if (match.begin == match.end && match.end == done && done > 0) {
      // Directly behind the last match: not a new one.
    } else {
      if (match.begin > done) visit(done, match.begin, false);
      visit(match.begin, match.end, true);
      done = match.end;
    }
    at = match.end;
    if (match.begin == match.end) {
      if (at >= text.size()) break;
      do ++at;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
    }
  }
  if (done < text.size()) visit(done, text.size(), false);
}

}  // namespace pleat::data
