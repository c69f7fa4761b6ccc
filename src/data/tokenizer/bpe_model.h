// The "model" of a tokenizer.json of type BPE.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/bpe_merge.h"
#include "data/tokenizer/json_fields.h"
#include "data/tokenizer/piece_cache.h"
#include "data/tokenizer/token_table.h"

namespace pleat::data {

class BpeModel {
 public:
  // What one thread needs while it encodes; also remembers pieces.
  struct Workspace {
    PieceCache cache = {};
    std::vector<BpeSymbol> symbols = {};
    std::vector<int32_t> ids = {};
    std::string spelled = {};
  };

  // Throws, naming the part, for what is not supported. `bytes`: pieces are bytes that the vocabulary spells
  // in GPT-2's alphabet; otherwise pieces are text.
  BpeModel(const Json& json, bool bytes, const std::string& where);

  const TokenTable& vocabulary() const { return vocabulary_; }

  // Appends the ids of one piece. A character that neither the vocabulary nor a fallback covers gives nothing
  // when the file names no unknown token, as in Hugging Face's library.
  void encode(std::string_view piece, std::vector<int32_t>& out, Workspace& workspace) const;

 private:
  void read_merges(const Json& merges, const std::string& where);
  void find_cuts(const std::vector<int32_t>& merged_ids, const std::vector<int32_t>& part_ids);
  void encode_cached(std::string_view piece, std::vector<int32_t>& out, Workspace& workspace) const;
  void encode_new(std::string_view piece, std::vector<int32_t>& out, Workspace& workspace) const;
  void first_symbols(std::string_view piece, Workspace& workspace) const;

  TokenTable vocabulary_;
  PairTable pairs_{0};
  bool bytes_ = false;
  bool byte_fallback_ = false;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
  int32_t unknown_id_ = -1;
  int32_t byte_ids_[256];      // of the byte's character; -1: none
  int32_t fallback_ids_[256];  // of <0xNN>

  // Without a pre-tokenizer a whole text is one piece. It may be cut between two characters of the vocabulary
  // that stand side by side in no merged token: no merge can reach across.
  bool may_cut_ = false;
  std::vector<uint64_t> known_characters_;  // one bit each
  PairTable neighbours_{0};
};

}  // namespace pleat::data
