#include "data/tokenizer/text_tokenizer.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {

int32_t TextTokenizer::end_of_document() const {
  if (asked_end_) return *asked_end_;
  if (const auto own = own_end_of_document()) return *own;
  base::fail(
      "{}: which token ends a document? Its files name none; say which by --eod or data.end_of_document",
      name());
}

void TextTokenizer::end_documents_with(std::string_view text) {
  int64_t id = -1;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error == std::errc() && stop == text.data() + text.size()) {
    if (id < 0 || id >= vocab_size())
      base::fail("{}: documents cannot end with id {}; ids are 0 to {}", name(), id, vocab_size() - 1);
  } else if (const auto found = id_of(text)) {
    id = *found;
  } else {
    base::fail("{}: the token \"{}\" that should end a document is not in it", name(), shown(text));
  }
  asked_end_ = static_cast<int32_t>(id);
}

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
