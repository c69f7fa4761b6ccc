#include "data/tokenizer/hugging_face_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

const Json kNull;
constexpr size_t kMaxByteSpellings = 2;

const Json& part(const Json& file, const char* key) {
  const Json* found = find(file, key);
  return found == nullptr ? kNull : *found;
}

const Json& bpe_part(const Json& file, const std::string& path) {
  const Json& model = need(file, "model", path);
  // Old files do not name the type; only BPE has merges.
  const std::string type = find(model, "type") != nullptr     ? type_of(model, path + ": model")
                           : find(model, "merges") != nullptr ? "BPE"
                                                              : "(unnamed)";
  if (type != "BPE")
    base::fail(
        "{}: model \"{}\" is not supported: of tokenizer.json files those with a BPE model are, and "
        "SentencePiece .model files of any kind",
        path, shown(type));
  return model;
}

}  // namespace

class HuggingFaceTokenizer::ModelSink final : public PieceSink {
 public:
  ModelSink(const BpeModel& model, std::vector<int32_t>& out, BpeModel::Workspace& workspace)
      : model_(model), out_(out), workspace_(workspace) {}
  void take(std::string_view piece, bool) override { model_.encode(piece, out_, workspace_); }

 private:
  const BpeModel& model_;
  std::vector<int32_t>& out_;
  BpeModel::Workspace& workspace_;
};

HuggingFaceTokenizer::HuggingFaceTokenizer(std::string_view file, const std::string& path,
                                           std::string_view end_of_document)
    : path_(path), hash_(base::to_hex(base::sha256(file))) {
  const Json json = parse_json(file, path);
  only_keys(json,
            {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
             "post_processor", "decoder", "model"},
            path);
  for (const char* key : {"truncation", "padding"})
    if (find(json, key) != nullptr) not_applied_.emplace_back(key);
  normalizer_ = make_normalizer(part(json, "normalizer"), path + ": normalizer");
  pre_tokenizer_ = make_pre_tokenizer(part(json, "pre_tokenizer"), path + ": pre_tokenizer");
  if (normalizer_ && pre_tokenizer_ && normalizer_->may_remove_start() && pre_tokenizer_->asks_for_start())
    base::fail("{}: a normalizer that removes text before prepend_scheme \"first\" is not supported", path);
  if (normalizer_ && pre_tokenizer_ && pre_tokenizer_->asks_for_start_of_parts())
    base::fail("{}: a normalizer before a sequence that uses prepend_scheme \"first\" is not supported",
               path);
  if (normalizer_ && normalizer_->num_spellings() > kMaxByteSpellings)
    base::fail("{}: {} ByteLevel normalizers; at most {} are supported", path, normalizer_->num_spellings(),
               kMaxByteSpellings);
  decoder_ = make_decoder(part(json, "decoder"), path + ": decoder");
  frame_ = read_post_processor(part(json, "post_processor"), path + ": post_processor");
  model_ = std::make_unique<BpeModel>(bpe_part(json, path), pre_tokenizer_ && pre_tokenizer_->ends_in_bytes(),
                                      path + ": model");
  read_added_tokens(part(json, "added_tokens"));
  for (const auto* ids : {&frame_.before, &frame_.after})
    for (const int32_t id : *ids)
      if (id >= vocab_size() || (!model_->vocabulary().has(id) && !added_.has(id)))
        base::fail("{}: post_processor: there is no token with id {}", path, id);
  if (!end_of_document.empty()) {
    const auto id = id_of(end_of_document);
    if (!id)
      base::fail("{}: the token \"{}\" that should end a document is not in it", path,
                 shown(end_of_document));
    end_of_document_ = *id;
  }
}

HuggingFaceTokenizer::~HuggingFaceTokenizer() = default;

void HuggingFaceTokenizer::read_added_tokens(const Json& json) {
  const std::string where = path_ + ": added_tokens";
  if (!json.is_null() && !json.is_array()) base::fail("{}: an array is needed", where);
  const TokenTable& vocabulary = model_->vocabulary();
  added_ = TokenTable(static_cast<size_t>(vocabulary.num_tokens()) + json.size());
  std::vector<AddedToken> tokens;
  for (const Json& item : json) {
    only_keys(item, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}, where);
    AddedToken token;
    token.content = string_at(item, "content", where);
    token.single_word = bool_at(item, "single_word", false, where);
    token.lstrip = bool_at(item, "lstrip", false, where);
    token.rstrip = bool_at(item, "rstrip", false, where);
    token.special = bool_at(item, "special", false, where);
    token.normalized = bool_at(item, "normalized", !token.special, where);
    const int64_t id = integer_at(item, "id", where);
    if (token.content.size() > kMaxAddedTokenBytes)
      base::fail("{}: \"{}\" has {} bytes; at most {} are supported", where, shown(token.content),
                 token.content.size(), kMaxAddedTokenBytes);
    if (const int32_t known = vocabulary.find(token.content); known >= 0) {
      if (known != id)
        base::fail("{}: \"{}\" has id {} here and {} in the vocabulary", where, shown(token.content), id,
                   known);
    } else {
      if (vocabulary.has(id))
        base::fail("{}: \"{}\" has id {}, which belongs to \"{}\"", where, shown(token.content), id,
                   shown(vocabulary.text(static_cast<int32_t>(id))));
      added_.add(token.content, id, where);
    }
    token.id = static_cast<int32_t>(id);
    added_list_.push_back({token.content, token.id});
    tokens.push_back(std::move(token));
  }
  special_.assign(static_cast<size_t>(std::max(vocabulary.max_id(), added_.max_id()) + 1), false);
  for (const AddedToken& token : tokens)
    if (token.special) special_[static_cast<size_t>(token.id)] = true;
  // Where two are spelled alike after normalization the special one is found.
  std::vector<AddedToken> ordered;
  for (const bool special : {true, false})
    for (const AddedToken& token : tokens)
      if (token.special == special) ordered.push_back(token);
  make_matchers(ordered);
}

void HuggingFaceTokenizer::make_matchers(const std::vector<AddedToken>& tokens) {
  WorkspacePool<Workspace>::Lease workspace(pool_);
  std::vector<AddedToken> raw, normalized;
  std::vector<std::string> raw_spellings, normalized_spellings;
  for (const AddedToken& token : tokens) {
    (token.normalized ? normalized : raw).push_back(token);
    std::string spelling = token.content;
    if (token.normalized && normalizer_) normalizer_->apply(spelling, workspace->regex);
    if (spelling != token.content) respelled_.emplace(token.id, spelling);
    (token.normalized ? normalized_spellings : raw_spellings).push_back(std::move(spelling));
  }
  raw_matcher_ = std::make_unique<AddedTokenMatcher>(raw, raw_spellings);
  normalized_matcher_ = std::make_unique<AddedTokenMatcher>(normalized, normalized_spellings);
}

std::optional<int32_t> HuggingFaceTokenizer::id_of(std::string_view token) const {
  if (const int32_t id = model_->vocabulary().find(token); id >= 0) return id;
  if (const int32_t id = added_.find(token); id >= 0) return id;
  return std::nullopt;
}

std::string_view HuggingFaceTokenizer::text_of(int32_t id) const {
  if (!respelled_.empty())
    if (const auto at = respelled_.find(id); at != respelled_.end()) return at->second;
  return added_.has(id) ? added_.text(id) : model_->vocabulary().text(id);
}

std::vector<int32_t> HuggingFaceTokenizer::encode(std::string_view bytes,
                                                  const EncodeOptions& options) const {
  WorkspacePool<Workspace>::Lease workspace(pool_);
  std::string replaced;
  const std::string_view text = as_valid_utf8(bytes, replaced);
  std::vector<int32_t> ids;
  if (options.add_special_tokens) ids = frame_.before;
  raw_matcher_->for_each_part(
      text, [&](int32_t id) { return wanted(id, options); },
      [&](size_t begin, size_t end, int32_t id) {
        if (id >= 0)
          ids.push_back(id);
        else
          encode_segment(text.substr(begin, end - begin), begin == 0, options, ids, *workspace);
      });
  if (options.add_special_tokens) ids.insert(ids.end(), frame_.after.begin(), frame_.after.end());
  return ids;
}

std::string HuggingFaceTokenizer::not_applied() const {
  if (not_applied_.empty()) return {};
  return fmt::format("{}: {} {} set; not applied: every text keeps its own length", path_,
                     fmt::join(not_applied_, " and "), not_applied_.size() == 1 ? "is" : "are");
}

bool HuggingFaceTokenizer::wanted(int32_t id, const EncodeOptions& options) const {
  if (!options.find_special_tokens && special_[static_cast<size_t>(id)]) return false;
  return std::find(options.never.begin(), options.never.end(), id) == options.never.end();
}

void HuggingFaceTokenizer::encode_segment(std::string_view text, bool at_start, const EncodeOptions& options,
                                          std::vector<int32_t>& out, Workspace& workspace) const {
  if (normalizer_) {
    workspace.normalized = text;
    normalizer_->apply(workspace.normalized, workspace.regex);
    text = workspace.normalized;
  }
  normalized_matcher_->for_each_part(
      text, [&](int32_t id) { return wanted(id, options); },
      [&](size_t begin, size_t end, int32_t id) {
        if (id >= 0)
          out.push_back(id);
        else
          encode_piece(text.substr(begin, end - begin), at_start && begin == 0, out, workspace);
      });
}

void HuggingFaceTokenizer::encode_piece(std::string_view text, bool at_start, std::vector<int32_t>& out,
                                        Workspace& workspace) const {
  ModelSink sink(*model_, out, workspace.model);
  if (pre_tokenizer_)
    pre_tokenizer_->run(text, at_start, workspace.regex, sink);
  else
    sink.take(text, at_start);
}

std::string HuggingFaceTokenizer::decode(std::span<const int32_t> tokens,
                                         const DecodeOptions& options) const {
  std::vector<std::string> spellings;
  spellings.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t id = tokens[i];
    if (!added_.has(id) && !model_->vocabulary().has(id)) {
      if (options.skip_unknown_ids) continue;
      base::fail("{}: id {} at position {} is not in the vocabulary of {}", path_, id, i, vocab_size());
    }
    if (options.skip_special_tokens && special_[static_cast<size_t>(id)]) continue;
    spellings.emplace_back(text_of(id));
  }
  std::string text;
  if (!decoder_) {
    for (size_t i = 0; i < spellings.size(); ++i) {
      if (i > 0) text += ' ';
      text += spellings[i];
    }
    return text;
  }
  WorkspacePool<Workspace>::Lease workspace(pool_);
  decoder_->apply(spellings, options.keep_broken_utf8, workspace->regex);
  for (const std::string& spelling : spellings) text += spelling;
  return text;
}

}  // namespace pleat::data
