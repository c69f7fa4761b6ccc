#include "data/tokenizer/train_bpe.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <queue>
#include <span>
#include <unordered_map>

#include "base/error.h"
#include "data/output_file.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/piece_cache.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/token_table.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

constexpr int64_t kBytesPerReport = int64_t{8} << 20;
constexpr int64_t kMergesPerReport = 256;

struct PieceHash {
  using is_transparent = void;
  size_t operator()(std::string_view piece) const { return hash_bytes(piece); }
};
using PieceCounts = std::unordered_map<std::string, int64_t, PieceHash, std::equal_to<>>;

using Pair = uint64_t;
Pair pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

struct Word {
  std::vector<int32_t> symbols;
  int64_t count = 0;
};

// Pairs with their counts over all words, and the words each was ever seen in.
class PairIndex {
 public:
  struct Entry {
    int64_t count;
    Pair pair;
    bool operator<(const Entry& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void change(Pair pair, int64_t by, uint32_t word) {
    Place& place = places_[pair];
    place.count += by;
    if (by > 0 && (place.words.empty() || place.words.back() != word)) place.words.push_back(word);
    if (by > 0) touched_.push_back(pair);
  }

  // Puts the pairs that gained since the last call where best() sees them.
  void publish() {
    std::sort(touched_.begin(), touched_.end());
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
    for (const Pair pair : touched_) queue_.push({places_[pair].count, pair});
    touched_.clear();
  }

  // The most frequent pair; false when there is none. Counts only ever fall between publications, so an entry
  // that is out of date goes back with what is left.
  bool best(Entry& out) {
    while (!queue_.empty()) {
      out = queue_.top();
      queue_.pop();
      const auto at = places_.find(out.pair);
      const int64_t now = at == places_.end() ? 0 : at->second.count;
      if (now == out.count && now > 0) return true;
      if (now > 0 && now < out.count) queue_.push({now, out.pair});
    }
    return false;
  }

  // After a pair was merged everywhere: none is left, whatever overlapping runs did to its count meanwhile.
  void forget(Pair pair) { places_.erase(pair); }

  std::vector<uint32_t> take_words(Pair pair) {
    std::vector<uint32_t> words = std::move(places_[pair].words);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    return words;
  }

 private:
  struct Place {
    int64_t count = 0;
    std::vector<uint32_t> words = {};
  };
  std::unordered_map<Pair, Place> places_;
  std::priority_queue<Entry> queue_;
  std::vector<Pair> touched_;
};

// Replaces the pair in one word, from the left, and tells the index what that did to the neighbours.
void merge_in(Word& word, uint32_t word_idx, int32_t left, int32_t right, int32_t merged, PairIndex& index) {
  std::vector<int32_t>& s = word.symbols;
  size_t kept = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    if (i + 1 >= s.size() || s[i] != left || s[i + 1] != right) {
      s[kept++] = s[i];
      continue;
    }
    if (kept > 0) {
      const int32_t before = s[kept - 1];
      index.change(pair_of(before, left), -word.count, word_idx);
      index.change(pair_of(before, merged), word.count, word_idx);
    }
    if (i + 2 < s.size()) {
      index.change(pair_of(right, s[i + 2]), -word.count, word_idx);
      index.change(pair_of(merged, s[i + 2]), word.count, word_idx);
    }
    s[kept++] = merged;
    ++i;
  }
  s.resize(kept);
}

std::string json_text(std::string_view text) { return nlohmann::json(text).dump(); }

}  // namespace

struct BpeTrainer::State {
  TrainBpeOptions options;
  Regex regex;
  Regex::Workspace workspace = {};
  PieceCounts pieces = {};
  TrainBpeProgress progress = {};
  int64_t reported_bytes = 0;
  TokenTable tokens;
  std::vector<std::pair<std::string, std::string>> merges = {};

  explicit State(TrainBpeOptions given)
      : options(std::move(given)),
        regex(options.pattern.empty() ? kGpt2Pattern : std::string_view(options.pattern),
              PatternDialect::Oniguruma, "training a tokenizer"),
        tokens(static_cast<size_t>(std::max<int64_t>(options.vocab_size, 0))) {}

  void report() const {
    if (options.progress) options.progress(progress);
  }
  int32_t add_token(std::string_view token) {
    const auto id = static_cast<int32_t>(tokens.num_tokens());
    tokens.add(token, id, "training a tokenizer");
    return id;
  }
  std::string vocabulary_json() const;
  TrainedBpe result() const;
};

BpeTrainer::BpeTrainer(TrainBpeOptions options) {
  const auto num_special = static_cast<int64_t>(options.special_tokens.size());
  if (options.vocab_size < num_special + 256 || options.vocab_size > (int64_t{1} << 24))
    base::fail(
        "training a tokenizer: a vocabulary of {}; from {} (256 bytes and {} special tokens) to {} is "
        "possible",
        options.vocab_size, num_special + 256, num_special, int64_t{1} << 24);
  if (options.min_frequency < 1)
    base::fail("training a tokenizer: min_frequency {}; 1 or more is needed", options.min_frequency);
  if (std::find(options.special_tokens.begin(), options.special_tokens.end(), options.end_of_document) ==
      options.special_tokens.end())
    base::fail("training a tokenizer: \"{}\" should end documents but is no special token",
               shown(options.end_of_document));
  for (const std::string& token : options.special_tokens)
    if (token.empty() || !is_valid_utf8(token))
      base::fail("training a tokenizer: special token \"{}\" is empty or no valid UTF-8", shown(token));
  state_ = std::make_unique<State>(std::move(options));
  for (const std::string& token : state_->options.special_tokens) {
    if (state_->tokens.find(token) >= 0)
      base::fail("training a tokenizer: special token \"{}\" is given twice", shown(token));
    state_->add_token(token);
  }
  state_->progress.num_tokens_wanted = state_->options.vocab_size;
}
BpeTrainer::~BpeTrainer() = default;

void BpeTrainer::add(std::string_view document) {
  State& s = *state_;
  std::string replaced;
  const std::string_view text = as_valid_utf8(document, replaced);
  for_each_part(s.regex, text, s.workspace, [&](size_t begin, size_t end, bool) {
    if (end == begin) return;
    const std::string_view piece = text.substr(begin, end - begin);
    const auto at = s.pieces.find(piece);
    if (at != s.pieces.end())
      ++at->second;
    else
      s.pieces.emplace(piece, 1);
  });
  s.progress.num_bytes_counted += static_cast<int64_t>(document.size());
  s.progress.num_different_pieces = static_cast<int64_t>(s.pieces.size());
  if (s.progress.num_bytes_counted - s.reported_bytes >= kBytesPerReport) {
    s.reported_bytes = s.progress.num_bytes_counted;
    s.report();
  }
}

TrainedBpe BpeTrainer::train() {
  State& s = *state_;
  if (s.pieces.empty()) base::fail("training a tokenizer: the documents hold no text");
  if (s.pieces.size() >= UINT32_MAX) base::fail("training a tokenizer: {} different pieces", s.pieces.size());
  // The alphabet in the order of its characters, as other trainers number it.
  std::vector<std::pair<uint32_t, int>> alphabet;
  for (int b = 0; b < 256; ++b) alphabet.emplace_back(byte_character(static_cast<unsigned char>(b)), b);
  std::sort(alphabet.begin(), alphabet.end());
  int32_t byte_ids[256] = {};
  for (const auto& [character, byte] : alphabet) {
    std::string spelled;
    append_code_point(spelled, character);
    const int32_t known = s.tokens.find(spelled);
    byte_ids[byte] = known >= 0 ? known : s.add_token(spelled);
  }
  std::vector<Word> words;
  words.reserve(s.pieces.size());
  PairIndex index;
  for (const auto& [piece, count] : s.pieces) {
    Word word{.symbols = {}, .count = count};
    for (const char c : piece) word.symbols.push_back(byte_ids[static_cast<unsigned char>(c)]);
    const auto word_idx = static_cast<uint32_t>(words.size());
    for (size_t i = 0; i + 1 < word.symbols.size(); ++i)
      index.change(pair_of(word.symbols[i], word.symbols[i + 1]), count, word_idx);
    words.push_back(std::move(word));
  }
  s.pieces.clear();
  index.publish();
  PairIndex::Entry top{};
  while (s.tokens.num_tokens() < s.options.vocab_size && index.best(top) &&
         top.count >= s.options.min_frequency) {
    const auto left = static_cast<int32_t>(top.pair >> 32),
               right = static_cast<int32_t>(top.pair & UINT32_MAX);
    const std::string spelled = std::string(s.tokens.text(left)) + std::string(s.tokens.text(right));
    s.merges.emplace_back(s.tokens.text(left), s.tokens.text(right));
    const int32_t known = s.tokens.find(spelled);
    const int32_t merged = known >= 0 ? known : s.add_token(spelled);
    for (const uint32_t word_idx : index.take_words(top.pair))
      merge_in(words[word_idx], word_idx, left, right, merged, index);
    index.forget(top.pair);
    index.publish();
    s.progress.num_tokens = s.tokens.num_tokens();
    if (static_cast<int64_t>(s.merges.size()) % kMergesPerReport == 0) s.report();
  }
  s.report();
  return s.result();
}

std::string BpeTrainer::State::vocabulary_json() const {
  std::string out;
  for (int32_t id = 0; id < tokens.num_tokens(); ++id)
    out += fmt::format("{}\n      {}: {}", id == 0 ? "" : ",", json_text(tokens.text(id)), id);
  return out;
}

TrainedBpe BpeTrainer::State::result() const {
  std::string added, merge_list;
  for (size_t i = 0; i < options.special_tokens.size(); ++i)
    added += fmt::format(
        "{}\n    {{\"id\": {}, \"content\": {}, \"single_word\": false, \"lstrip\": false, \"rstrip\": "
        "false, "
        "\"normalized\": false, \"special\": true}}",
        i == 0 ? "" : ",", i, json_text(options.special_tokens[i]));
  for (size_t i = 0; i < merges.size(); ++i)
    merge_list += fmt::format("{}\n      [{}, {}]", i == 0 ? "" : ",", json_text(merges[i].first),
                              json_text(merges[i].second));
  const std::string bytes =
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": )";
  const std::string cut =
      options.pattern.empty()
          ? bytes + "true}"
          : fmt::format(
                R"({{"type": "Sequence", "pretokenizers": [{{"type": "Split", "pattern": {{"Regex": {}}}, )"
                R"("behavior": "Isolated", "invert": false}}, {}false}}]}})",
                json_text(options.pattern), bytes);
  TrainedBpe trained;
  trained.vocab_size = tokens.num_tokens();
  trained.num_merges = static_cast<int64_t>(merges.size());
  trained.tokenizer_json = fmt::format(
      "{{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [{}\n "
      " ],\n"
      "  \"normalizer\": null,\n  \"pre_tokenizer\": {},\n  \"post_processor\": null,\n  \"decoder\": "
      "{}true}},\n"
      "  \"model\": {{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": "
      "false,\n"
      "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": {{{}\n    }},\n"
      "    \"merges\": [{}\n    ]\n  }}\n}}\n",
      added, cut, bytes, vocabulary_json(), merge_list);
  trained.tokenizer_config_json =
      fmt::format("{{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"eos_token\": {}\n}}\n",
                  json_text(options.end_of_document));
  return trained;
}

TrainedBpe train_bpe(const std::function<bool(std::string&)>& next, const TrainBpeOptions& options) {
  BpeTrainer trainer(options);
  for (std::string document; next(document);) trainer.add(document);
  return trainer.train();
}

void write_trained_bpe(const TrainedBpe& trained, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    base::fail_with(base::ExitCode::Storage, "{}: cannot make the folder: {}", folder, error.message());
  const std::string path = folder + "/tokenizer.json", config_path = folder + "/tokenizer_config.json";
  OutputFile file(path), config(config_path);
  file.write(std::as_bytes(std::span(trained.tokenizer_json)));
  config.write(std::as_bytes(std::span(trained.tokenizer_config_json)));
  file.sync();
  config.sync();
  file.commit();
  config.commit();
  sync_folder_of(path);
}

}  // namespace pleat::data
