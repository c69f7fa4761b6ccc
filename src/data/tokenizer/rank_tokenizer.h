// Byte-pair encoding by ranks, as tiktoken does it: the bytes of a token are their own merge rule, and of all
// neighbours the pair whose bytes have the lowest rank is merged first.
//
// Special tokens are made from text only where the parts say so; id_of gives their ids.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe_merge.h"
#include "data/tokenizer/piece_cache.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/text_tokenizer.h"
#include "data/tokenizer/token_table.h"
#include "data/tokenizer/workspace_pool.h"

namespace pleat::data {

struct RankTokenizerParts {
  std::string path = {};
  std::string kind = {};  // tiktoken or tekken
  std::string hash = {};
  TokenTable ranks{0};   // the bytes of each rank
  int32_t id_shift = 0;  // id = rank + id_shift
  std::string pattern = {};
  std::vector<std::pair<std::string, int32_t>> special_tokens = {};  // ids as they are
  std::string begin_of_text = {};                                    // put in front on request; empty: none
  std::string end_of_document = {};                                  // empty: none
  bool text_makes_special_tokens = false;                            // where it spells one
};

class RankTokenizer final : public TextTokenizer {
 public:
  // Throws when a byte has no rank, when ids collide, or when a named special token is not there.
  explicit RankTokenizer(RankTokenizerParts parts);

  std::string name() const override { return parts_.path; }
  int64_t vocab_size() const override { return vocab_size_; }
  std::string kind() const override { return parts_.kind; }
  std::string tokenizer_hash() const override { return parts_.hash; }
  std::vector<SpecialToken> special_tokens() const override;
  // Special tokens by name; others by their bytes.
  std::optional<int32_t> id_of(std::string_view token) const override;

  using TextTokenizer::decode;
  using TextTokenizer::encode;
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const override;
  std::string decode(std::span<const int32_t> tokens, const DecodeOptions& options) const override;

 protected:
  std::optional<int32_t> own_end_of_document() const override { return end_of_document_; }

 private:
  struct Workspace {
    Regex::Workspace regex = {};
    PieceCache cache = {};
    std::vector<BpeSpelledSymbol> symbols = {};
  };
  void encode_text(std::string_view text, std::vector<int32_t>& out, Workspace& workspace) const;
  void encode_piece(std::string_view piece, std::vector<int32_t>& out, Workspace& workspace) const;
  int32_t special_id(std::string_view name) const;

  RankTokenizerParts parts_;
  Regex regex_;
  TokenTable special_{0};
  std::unique_ptr<AddedTokenMatcher> matcher_;  // null: text makes no special tokens
  size_t longest_token_ = 0;
  int64_t vocab_size_ = 0;
  int32_t begin_of_text_ = -1;
  std::optional<int32_t> end_of_document_;
  int32_t byte_ranks_[256];
  mutable WorkspacePool<Workspace> pool_;
};

}  // namespace pleat::data
