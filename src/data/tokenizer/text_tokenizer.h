// A tokenizer that comes from a file: what the data layer needs, plus what generation and chat data need.
//
// Text is UTF-8; broken input is replaced first (utf8.h says how). All functions are safe to call from
// several threads at once.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace pleat::data {

struct EncodeOptions {
  bool add_special_tokens = false;  // the begin and end tokens the file asks for
  // Off: text that spells a special token stays text. `never` does the same for further tokens, by id. A
  // SentencePiece model cannot leave out its user-defined symbols: who must be sure looks at the result.
  bool find_special_tokens = true;
  std::span<const int32_t> never = {};
};

struct SpecialToken {
  std::string spelling;
  int32_t id = 0;
};

struct DecodeOptions {
  bool skip_special_tokens = false;
  // Bytes that form no valid UTF-8 come out as they are instead of as U+FFFD: for text that is printed piece
  // by piece. Where the file's own decoding steps work on characters they are replaced all the same.
  bool keep_broken_utf8 = false;
  // Ids that stand for nothing are left out instead of being an error: a model may have more rows than its
  // tokenizer has tokens, and generate any of them.
  bool skip_unknown_ids = false;
};

class TextTokenizer : public Tokenizer {
 public:
  using Tokenizer::decode;
  using Tokenizer::encode;

  virtual std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const = 0;
  virtual std::string decode(std::span<const int32_t> tokens, const DecodeOptions& options) const = 0;

  // byte, hugging_face, sentencepiece, tiktoken or tekken.
  virtual std::string kind() const = 0;
  // 64 hex digits: SHA-256 of what defines the ids (the file; for rank files also pattern and special
  // tokens).
  virtual std::string tokenizer_hash() const = 0;
  // The id of a token by its exact spelling, special ones included ("<|im_start|>").
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  // Tokens that stand for themselves and are not put together from text, whether or not text may spell them.
  virtual std::vector<SpecialToken> special_tokens() const = 0;

  // One line about settings of the file that have no effect here; empty where there are none.
  virtual std::string not_applied() const { return {}; }

  // False where neither the file nor the user names the token; end_of_document() throws then.
  bool has_end_of_document() const { return asked_end_ || own_end_of_document(); }
  int32_t end_of_document() const final;
  // Takes the place of what the file says: a number, or the spelling of a token. Throws when it is neither.
  void end_documents_with(std::string_view id_or_token);

  std::vector<int32_t> encode(std::string_view text) const override { return encode(text, EncodeOptions{}); }
  // Special tokens are spelled out, only end-of-document is left out.
  std::string decode(std::span<const int32_t> tokens) const override;
  bool can_cut_anywhere() const override { return false; }

 protected:
  virtual std::optional<int32_t> own_end_of_document() const = 0;

 private:
  std::optional<int32_t> asked_end_;
};

}  // namespace pleat::data
