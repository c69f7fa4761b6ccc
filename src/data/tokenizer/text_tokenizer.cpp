#include "data/tokenizer/text_tokenizer.h"

#include <algorithm>

namespace pleat::data {

std::string TextTokenizer::decode(std::span<const int32_t> tokens) const {
  if (!has_end_of_document()) return decode(tokens, DecodeOptions{});
  const int32_t end = end_of_document();
  if (std::find(tokens.begin(), tokens.end(), end) == tokens.end()) return decode(tokens, DecodeOptions{});
  // Documents are decoded one by one: steps at the start of a text apply to each of them.
  std::string text;
  for (size_t at = 0; at < tokens.size();) {
    const size_t stop = static_cast<size_t>(
        std::find(tokens.begin() + static_cast<ptrdiff_t>(at), tokens.end(), end) - tokens.begin());
    if (stop > at) text += decode(tokens.subspan(at, stop - at), DecodeOptions{});
    at = stop + 1;
  }
  return text;
}

}  // namespace pleat::data
