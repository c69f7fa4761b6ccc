// Hugging Face's tokenizer.json with a BPE model: byte-level (GPT-2, Llama 3, Qwen, DeepSeek) and
// SentencePiece-like with byte fallback (Llama 2, Mixtral, Gemma).
//
// Ids equal those of Hugging Face's `tokenizers`. Parts that are not supported are an error when the file is
// read.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe_model.h"
#include "data/tokenizer/decoder.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/post_processor.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/text_tokenizer.h"
#include "data/tokenizer/workspace_pool.h"

namespace pleat::data {

class HuggingFaceTokenizer final : public TextTokenizer {
 public:
  // `file` is the whole tokenizer.json, `path` its name in messages. The file itself does not say which token
  // ends a document: `end_of_document` does, by spelling; empty for none.
  HuggingFaceTokenizer(std::string_view file, const std::string& path, std::string_view end_of_document);
  ~HuggingFaceTokenizer() override;

  std::string name() const override { return path_; }
  int64_t vocab_size() const override { return static_cast<int64_t>(special_.size()); }
  std::string kind() const override { return "hugging_face"; }
  std::string tokenizer_hash() const override { return hash_; }
  std::vector<SpecialToken> special_tokens() const override { return added_list_; }
  std::optional<int32_t> id_of(std::string_view token) const override;
  std::string not_applied() const override;

  using TextTokenizer::decode;
  using TextTokenizer::encode;
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const override;
  std::string decode(std::span<const int32_t> tokens, const DecodeOptions& options) const override;

 protected:
  std::optional<int32_t> own_end_of_document() const override { return end_of_document_; }

 private:
  struct Workspace {
    Regex::Workspace regex = {};
    BpeModel::Workspace model = {};
    std::string normalized = {};
  };
  class ModelSink;

  void read_added_tokens(const Json& json);
  void make_matchers(const std::vector<AddedToken>& tokens);
  // Whether an added token is looked for in text under these options.
  bool wanted(int32_t id, const EncodeOptions& options) const;
  void encode_segment(std::string_view text, bool at_start, const EncodeOptions& options,
                      std::vector<int32_t>& out, Workspace& workspace) const;
  void encode_piece(std::string_view text, bool at_start, std::vector<int32_t>& out,
                    Workspace& workspace) const;
  std::string_view text_of(int32_t id) const;

  std::string path_;
  std::string hash_;
  std::unique_ptr<Normalizer> normalizer_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::unique_ptr<BpeModel> model_;
  std::unique_ptr<TokenDecoder> decoder_;
  SpecialFrame frame_;
  TokenTable added_{0};  // those the model's vocabulary lacks
  std::unique_ptr<AddedTokenMatcher> raw_matcher_, normalized_matcher_;
  // Normalized tokens decode as the normalizer leaves them, as in Hugging Face's library.
  std::unordered_map<int32_t, std::string> respelled_;
  std::vector<bool> special_;  // by id, vocab_size() of them
  std::vector<SpecialToken> added_list_;
  std::vector<std::string> not_applied_;  // keys that are set and have no effect here
  std::optional<int32_t> end_of_document_;
  mutable WorkspacePool<Workspace> pool_;
};

}  // namespace pleat::data
