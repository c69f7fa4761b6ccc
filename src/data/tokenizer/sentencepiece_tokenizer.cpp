#include "data/tokenizer/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include "base/error.h"
#include "base/hash.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

constexpr size_t kMaxModelBytes = size_t{256} << 20;

class SentencePieceTokenizer final : public TextTokenizer {
 public:
  SentencePieceTokenizer(std::string_view file, const std::string& path)
      : path_(path), hash_(base::to_hex(base::sha256(file))) {
    if (file.size() > kMaxModelBytes)
      base::fail("{}: {} bytes; SentencePiece models of at most {} are supported", path, file.size(),
                 kMaxModelBytes);
    check(processor_.LoadFromSerializedProto(file), "is no SentencePiece model");
    if (processor_.GetPieceSize() <= 0) base::fail("{}: the SentencePiece model has no pieces", path);
  }

  std::string name() const override { return path_; }
  int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::string kind() const override { return "sentencepiece"; }
  std::string tokenizer_hash() const override { return hash_; }
  std::optional<int32_t> id_of(std::string_view token) const override {
    const int id = processor_.PieceToId(token);
    if (id == processor_.unk_id() && processor_.IdToPiece(id) != token) return std::nullopt;
    return id;
  }

  std::vector<SpecialToken> special_tokens() const override {
    std::vector<SpecialToken> out;
    for (int id = 0; id < processor_.GetPieceSize(); ++id)
      if (processor_.IsControl(id)) out.push_back({processor_.IdToPiece(id), id});
    // The library does not tell user-defined symbols from other pieces; id_of finds them.
    return out;
  }

  using TextTokenizer::decode;
  using TextTokenizer::encode;

  std::vector<int32_t> encode(std::string_view bytes, const EncodeOptions& options) const override {
    std::string replaced;
    const std::string_view text = as_valid_utf8(bytes, replaced);
    std::vector<int> ids;
    check(processor_.Encode(text, &ids), "cannot encode this text");
    if (options.add_special_tokens && processor_.bos_id() >= 0) ids.insert(ids.begin(), processor_.bos_id());
    return ids;
  }

  std::string decode(std::span<const int32_t> tokens, const DecodeOptions& options) const override {
    std::vector<int> ids(tokens.begin(), tokens.end());
    if (options.skip_unknown_ids)
      std::erase_if(ids, [&](int id) { return id < 0 || id >= processor_.GetPieceSize(); });
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids[i] < 0 || ids[i] >= processor_.GetPieceSize())
        base::fail("{}: id {} at position {} is not in the vocabulary of {}", path_, ids[i], i, vocab_size());
    std::string text;
    check(processor_.Decode(ids, &text), "cannot decode these ids");
    return text;
  }

 protected:
  std::optional<int32_t> own_end_of_document() const override {
    if (processor_.eos_id() < 0) return std::nullopt;
    return processor_.eos_id();
  }

 private:
  void check(const sentencepiece::util::Status& status, std::string_view what) const {
    if (!status.ok()) base::fail("{}: {}: {}", path_, what, shown(status.message(), 160));
  }

  std::string path_;
  std::string hash_;
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<TextTokenizer> read_sentencepiece(std::string_view file, const std::string& path) {
  return std::make_unique<SentencePieceTokenizer>(file, path);
}

}  // namespace pleat::data
