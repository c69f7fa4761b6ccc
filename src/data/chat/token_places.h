// Where each token of an encoded text stands in it.
//
// Tokenizers give ids only. The bytes a token stands for are known, so the places are found again by walking
// through the text: a token whose bytes stand at the place reached has its place there. Where the text is not
// in Unicode's composed form (NFC), which some tokenizers bring it into, the walk goes through that form.
// Where something else was changed, the tokens up to the next one with a certain place share what lies
// between.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/text_tokenizer.h"

namespace pleat::data {

struct TokenPlace {
  size_t begin = 0, end = 0;
  bool certain = true;  // false: somewhere in [begin, end), with others
};

class TokenPlacer {
 public:
  // Looks up the bytes of every token once. `tokenizer` may go away.
  explicit TokenPlacer(const TextTokenizer& tokenizer);

  // One place per id. The places of zero width tokens (a blank that only the tokenizer put there) are those
  // of the character that follows.
  std::vector<TokenPlace> places(std::string_view text, std::span<const int32_t> ids) const;

 private:
  std::vector<TokenPlace> walk(std::string_view text, std::span<const int32_t> ids) const;
  // The number of bytes of `text` at `at` that the token stands for; npos when it does not stand there.
  size_t match(std::string_view text, size_t at, int32_t id, size_t& begin) const;

  std::vector<std::string> bytes_;  // by id
  std::vector<bool> is_added_;
};

}  // namespace pleat::data
