#include "data/tokenizer/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

// \w of Unicode's regular expressions: alphabetic, marks, digits, connectors, joiners.
bool is_word_character(uint32_t code_point) {
  const auto c = static_cast<UChar32>(code_point);
  return u_hasBinaryProperty(c, UCHAR_ALPHABETIC) ||
         (U_GET_GC_MASK(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) ||
         u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL);
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens,
                                     const std::vector<std::string>& spellings)
    : tokens_(tokens), nodes_(1) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (spellings[i].empty()) continue;
    int32_t node = 0;
    for (const char c : spellings[i]) {
      const auto byte = static_cast<unsigned char>(c);
      int32_t child = child_of(node, byte);
      if (child < 0) {
        child = static_cast<int32_t>(nodes_.size());
        nodes_.emplace_back();
        auto& children = nodes_[static_cast<size_t>(node)].children;
        children.insert(std::upper_bound(children.begin(), children.end(), std::pair(byte, child)),
                        {byte, child});
      }
      node = child;
    }
    starts_[static_cast<unsigned char>(spellings[i][0])] = true;
    int32_t& token = nodes_[static_cast<size_t>(node)].token;
    if (token < 0) token = static_cast<int32_t>(i);
  }
}

int32_t AddedTokenMatcher::child_of(int32_t node, unsigned char byte) const {
  for (const auto& [key, child] : nodes_[static_cast<size_t>(node)].children)
    if (key == byte) return child;
  return -1;
}

int32_t AddedTokenMatcher::longest_at(std::string_view text, size_t at, size_t& end) const {
  int32_t node = 0, found = -1;
  for (; at < text.size(); ++at) {
    node = child_of(node, static_cast<unsigned char>(text[at]));
    if (node < 0) break;
    if (const int32_t token = nodes_[static_cast<size_t>(node)].token; token >= 0) {
      found = token;
      end = at + 1;
    }
  }
  return found;
}

bool AddedTokenMatcher::widen(std::string_view text, size_t done, const AddedToken& token, size_t& begin,
                              size_t& end) {
  if (token.single_word) {
    if (begin > 0) {
      size_t at = previous_character(text, begin);
      if (is_word_character(next_code_point(text, at))) return false;
    }
    if (end < text.size()) {
      size_t at = end;
      if (is_word_character(next_code_point(text, at))) return false;
    }
  }
  if (token.lstrip) {
    // Never further than the last match: repeated tokens stay linear in the text.
    while (begin > done) {
      const size_t before = previous_character(text, begin);
      size_t at = before;
      if (!is_white_space(next_code_point(text, at))) break;
      begin = before;
    }
  }
  if (token.rstrip) {
    while (end < text.size()) {
      size_t at = end;
      if (!is_white_space(next_code_point(text, at))) break;
      end = at;
    }
  }
  return true;
}

}  // namespace pleat::data
