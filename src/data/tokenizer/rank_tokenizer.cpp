#include "data/tokenizer/rank_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {

RankTokenizer::RankTokenizer(RankTokenizerParts parts)
    : parts_(std::move(parts)), regex_(parts_.pattern, PatternDialect::Rust, parts_.path) {
  const TokenTable& ranks = parts_.ranks;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    byte_ranks_[b] = ranks.find({&byte, 1});
    if (byte_ranks_[b] < 0) base::fail("{}: byte 0x{:02x} has no rank; every byte needs one", parts_.path, b);
  }
  for (int64_t rank = 0; rank <= ranks.max_id(); ++rank)
    if (ranks.has(rank))
      longest_token_ = std::max(longest_token_, ranks.text(static_cast<int32_t>(rank)).size());
  // Special ids may lie far behind a small table of ranks.
  special_ = TokenTable(std::max<size_t>(static_cast<size_t>(ranks.num_tokens()), 1 << 17));
  for (const auto& [token, id] : parts_.special_tokens) {
    if (ranks.has(int64_t{id} - parts_.id_shift))
      base::fail("{}: special token \"{}\" has id {}, which belongs to a plain token", parts_.path,
                 shown(token), id);
    special_.add(token, id, parts_.path);
  }
  if (parts_.text_makes_special_tokens) {
    std::vector<AddedToken> tokens;
    std::vector<std::string> spellings;
    for (const auto& [token, id] : parts_.special_tokens) {
      tokens.push_back({.id = id, .content = token, .normalized = false, .special = true});
      spellings.push_back(token);
      if (token.size() > kMaxAddedTokenBytes)
        base::fail("{}: special token \"{}\" has {} bytes; at most {} are supported", parts_.path,
                   shown(token), token.size(), kMaxAddedTokenBytes);
    }
    matcher_ = std::make_unique<AddedTokenMatcher>(tokens, spellings);
  }
  vocab_size_ = std::max(special_.max_id(), ranks.max_id() + parts_.id_shift) + 1;
  if (vocab_size_ > INT32_MAX) base::fail("{}: a vocabulary of {} ids", parts_.path, vocab_size_);
  if (!parts_.begin_of_text.empty()) begin_of_text_ = special_id(parts_.begin_of_text);
  if (!parts_.end_of_document.empty()) end_of_document_ = special_id(parts_.end_of_document);
}

int32_t RankTokenizer::special_id(std::string_view name) const {
  const int32_t id = special_.find(name);
  if (id < 0) base::fail("{}: there is no special token \"{}\"", parts_.path, shown(name));
  return id;
}

std::vector<SpecialToken> RankTokenizer::special_tokens() const {
  std::vector<SpecialToken> out;
  for (const auto& [token, id] : parts_.special_tokens) out.push_back({token, id});
  return out;
}

std::optional<int32_t> RankTokenizer::id_of(std::string_view token) const {
  if (const int32_t id = special_.find(token); id >= 0) return id;
  if (const int32_t rank = parts_.ranks.find(token); rank >= 0) return rank + parts_.id_shift;
  return std::nullopt;
}

std::vector<int32_t> RankTokenizer::encode(std::string_view bytes, const EncodeOptions& options) const {
  if (bytes.size() >= UINT32_MAX / 4)
    base::fail("a document of {} bytes is too long; split the text", bytes.size());
  WorkspacePool<Workspace>::Lease workspace(pool_);
  std::string replaced;
  const std::string_view text = as_valid_utf8(bytes, replaced);
  std::vector<int32_t> ids;
  if (options.add_special_tokens && begin_of_text_ >= 0) ids.push_back(begin_of_text_);
  if (!matcher_ || !options.find_special_tokens) {
    encode_text(text, ids, *workspace);
    return ids;
  }
  matcher_->for_each_part(
      text,
      [&](int32_t id) {
        return std::find(options.never.begin(), options.never.end(), id) == options.never.end();
      },
      [&](size_t begin, size_t end, int32_t id) {
        if (id >= 0)
          ids.push_back(id);
        else
          encode_text(text.substr(begin, end - begin), ids, *workspace);
      });
  return ids;
}

void RankTokenizer::encode_text(std::string_view text, std::vector<int32_t>& out,
                                Workspace& workspace) const {
  for_each_part(regex_, text, workspace.regex, [&](size_t begin, size_t end, bool is_match) {
    if (!is_match)
      base::fail("{}: the pattern leaves {} bytes at {} uncovered; they would be lost", parts_.path,
                 end - begin, begin);
    if (end > begin) encode_piece(text.substr(begin, end - begin), out, workspace);
  });
}

void RankTokenizer::encode_piece(std::string_view piece, std::vector<int32_t>& out,
                                 Workspace& workspace) const {
  const bool keep = piece.size() <= PieceCache::kMaxPieceBytes;
  const uint64_t hash = keep ? hash_bytes(piece) : 0;
  if (keep) {
    if (const auto* ids = workspace.cache.find(piece, hash)) {
      out.insert(out.end(), ids->begin(), ids->end());
      return;
    }
  }
  const size_t before = out.size();
  if (const int32_t rank = parts_.ranks.find(piece); rank >= 0) {
    out.push_back(rank + parts_.id_shift);
  } else {
    check_word(piece);
    auto& symbols = workspace.symbols;
    symbols.clear();
    for (uint32_t i = 0; i < piece.size(); ++i)
      symbols.push_back({.id = byte_ranks_[static_cast<unsigned char>(piece[i])], .begin = i, .end = i + 1});
    const auto candidate = [&](const BpeSpelledSymbol& left, const BpeSpelledSymbol& right) {
      const size_t size = right.end - left.begin;
      if (size > longest_token_) return BpeCandidate{};
      const int32_t rank = parts_.ranks.find(piece.substr(left.begin, size));
      return rank < 0 ? BpeCandidate{} : BpeCandidate{static_cast<uint32_t>(rank), rank};
    };
    BpeMerger<BpeSpelledSymbol, decltype(candidate)>(candidate).run(symbols);
    for (const BpeSpelledSymbol& symbol : symbols) out.push_back(symbol.id + parts_.id_shift);
  }
  if (keep) workspace.cache.insert(piece, hash, std::span(out).subspan(before));
}

std::string RankTokenizer::decode(std::span<const int32_t> tokens, const DecodeOptions& options) const {
  std::string bytes;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t id = tokens[i];
    if (special_.has(id)) {
      if (!options.skip_special_tokens) bytes += special_.text(id);
    } else if (const int64_t rank = int64_t{id} - parts_.id_shift; parts_.ranks.has(rank)) {
      bytes += parts_.ranks.text(static_cast<int32_t>(rank));
    } else if (!options.skip_unknown_ids) {
      base::fail("{}: id {} at position {} is not in the vocabulary of {}", parts_.path, id, i, vocab_size_);
    }
  }
  return options.keep_broken_utf8 ? bytes : replace_broken_utf8(bytes);
}

}  // namespace pleat::data
