#include "data/tokenizer/rank_files.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "data/tokenizer/json_fields.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

constexpr std::string_view kCl100kPattern =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n])"
    R"(|\s+(?!\S)|\s)";
constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";

// Runs of Han characters stand alone, and no other word holds one.
constexpr std::string_view kKimiPattern =
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  if (c == '/') return 63;
  return -1;
}

// False unless `text` is whole groups of four with padding at the end only.
bool decode_base64(std::string_view text, std::string& out) {
  out.clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  for (size_t i = 0; i < text.size(); i += 4) {
    uint32_t bits = 0;
    const size_t num_digits = i + 4 == text.size() ? 4 - padding : 4;
    for (size_t j = 0; j < 4; ++j) {
      const int digit = j < num_digits ? base64_digit(text[i + j]) : 0;
      if (digit < 0) return false;
      bits = bits << 6 | static_cast<uint32_t>(digit);
    }
    for (size_t j = 0; j + 1 < num_digits; ++j) out.push_back(static_cast<char>(bits >> (16 - 8 * j) & 0xff));
  }
  return true;
}

TokenTable read_ranks(std::string_view file, const std::string& path) {
  TokenTable ranks(static_cast<size_t>(std::count(file.begin(), file.end(), '\n')) + 1);
  std::string bytes;
  int64_t line_number = 0;
  for (size_t at = 0; at < file.size();) {
    const size_t end = std::min(file.find('\n', at), file.size());
    std::string_view line = file.substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    int64_t rank = -1;
    bool good = space != std::string_view::npos && decode_base64(line.substr(0, space), bytes);
    if (good) {
      const std::string_view number = line.substr(space + 1);
      const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
      good = error == std::errc() && stop == number.data() + number.size();
    }
    if (!good) base::fail("{}:{}: \"{}\" is not \"base64 rank\"", path, line_number, shown(line));
    ranks.add(bytes, rank, fmt::format("{}:{}", path, line_number));
  }
  if (ranks.num_tokens() == 0) base::fail("{}: holds no rank", path);
  return ranks;
}

using Specials = std::vector<std::pair<std::string, int32_t>>;

Specials numbered(std::vector<std::string> names, int64_t first) {
  Specials specials;
  for (std::string& name : names)
    specials.emplace_back(std::move(name),
                          static_cast<int32_t>(first + static_cast<int64_t>(specials.size())));
  return specials;
}

Specials qwen_specials(int64_t first) {
  std::vector<std::string> names = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  for (int i = 0; i < 205; ++i) names.push_back(fmt::format("<|extra_{}|>", i));
  return numbered(std::move(names), first);
}

Specials llama3_specials(int64_t first) {
  std::vector<std::string> names = {"<|begin_of_text|>",
                                    "<|end_of_text|>",
                                    "<|reserved_special_token_0|>",
                                    "<|reserved_special_token_1|>",
                                    "<|finetune_right_pad_id|>",
                                    "<|step_id|>",
                                    "<|start_header_id|>",
                                    "<|end_header_id|>",
                                    "<|eom_id|>",
                                    "<|eot_id|>",
                                    "<|python_tag|>"};
  for (int i = 2; names.size() < 256; ++i) names.push_back(fmt::format("<|reserved_special_token_{}|>", i));
  return numbered(std::move(names), first);
}

// Of the two names published for 200018 the one of the chat format's own file.
Specials harmony_specials() {
  Specials specials;
  for (int32_t id = 199998; id < 201088; ++id) specials.emplace_back(fmt::format("<|reserved_{}|>", id), id);
  const std::pair<int32_t, const char*> names[] = {{199998, "<|startoftext|>"}, {199999, "<|endoftext|>"},
                                                   {200002, "<|return|>"},      {200003, "<|constrain|>"},
                                                   {200005, "<|channel|>"},     {200006, "<|start|>"},
                                                   {200007, "<|end|>"},         {200008, "<|message|>"},
                                                   {200012, "<|call|>"},        {200018, "<|endofprompt|>"}};
  for (const auto& [id, name] : names) specials[static_cast<size_t>(id - 199998)].first = name;
  return specials;
}

}  // namespace

RankFileFamily rank_file_family(std::string_view name, int64_t num_ranks) {
  RankFileFamily family;
  family.name = name;
  family.end_of_document = "<|endoftext|>";
  if (name == "r50k") {
    family.pattern = kGpt2Pattern;
    family.special_tokens = {{"<|endoftext|>", 50256}};
  } else if (name == "cl100k") {
    family.pattern = kCl100kPattern;
    family.special_tokens = {{"<|endoftext|>", 100257},
                             {"<|fim_prefix|>", 100258},
                             {"<|fim_middle|>", 100259},
                             {"<|fim_suffix|>", 100260},
                             {"<|endofprompt|>", 100276}};
  } else if (name == "o200k") {
    family.pattern = kO200kPattern;
    family.special_tokens = {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}};
  } else if (name == "o200k_harmony") {
    family.pattern = kO200kPattern;
    family.special_tokens = harmony_specials();
  } else if (name == "kimi") {
    family.pattern = kKimiPattern;
    family.end_of_document.clear();
    family.text_makes_special_tokens = true;
  } else if (name == "qwen") {
    family.pattern = kQwenPattern;
    family.special_tokens = qwen_specials(num_ranks);
  } else if (name == "llama3") {
    family.pattern = kLlama3Pattern;
    family.special_tokens = llama3_specials(num_ranks);
    family.begin_of_text = "<|begin_of_text|>";
    family.end_of_document = "<|end_of_text|>";
  } else {
    base::fail("\"{}\" is no family of rank files; known are {}", shown(name),
               fmt::join(kRankFileFamilies, ", "));
  }
  return family;
}

int64_t num_ranks(std::string_view file, const std::string& path) {
  return read_ranks(file, path).num_tokens();
}

std::unique_ptr<RankTokenizer> read_tiktoken(std::string_view file, const std::string& path,
                                             std::string_view family) {
  return read_tiktoken(file, path, rank_file_family(family, num_ranks(file, path)));
}

std::unique_ptr<RankTokenizer> read_tiktoken(std::string_view file, const std::string& path,
                                             RankFileFamily family) {
  RankTokenizerParts parts;
  parts.path = path;
  parts.kind = "tiktoken";
  parts.ranks = read_ranks(file, path);
  base::Sha256 hash;
  hash.update(file).update(std::string_view("\0", 1)).update(family.pattern);
  for (const auto& [token, id] : family.special_tokens)
    hash.update(std::string_view("\0", 1)).update(token).update(fmt::format(" {}", id));
  parts.hash = hash.hex();
  parts.pattern = std::move(family.pattern);
  parts.special_tokens = std::move(family.special_tokens);
  parts.begin_of_text = std::move(family.begin_of_text);
  parts.end_of_document = std::move(family.end_of_document);
  parts.text_makes_special_tokens = family.text_makes_special_tokens;
  return std::make_unique<RankTokenizer>(std::move(parts));
}

std::unique_ptr<RankTokenizer> read_tekken(std::string_view file, const std::string& path) {
  const Json json = parse_json(file, path);
  const Json& config = need(json, "config", path);
  const int64_t vocab_size = integer_at(config, "default_vocab_size", path + ": config");
  const int64_t num_special = integer_at(config, "default_num_special_tokens", path + ": config");
  const Json& vocabulary = need(json, "vocab", path);
  if (!vocabulary.is_array()) base::fail("{}: vocab: an array is needed", path);
  if (num_special < 3 || num_special > (1 << 20) || vocab_size <= num_special ||
      vocab_size - num_special > static_cast<int64_t>(vocabulary.size()))
    base::fail("{}: a vocabulary of {} with {} special tokens does not fit a list of {} tokens", path,
               vocab_size, num_special, vocabulary.size());
  RankTokenizerParts parts;
  parts.path = path;
  parts.kind = "tekken";
  parts.hash = base::to_hex(base::sha256(file));
  parts.id_shift = static_cast<int32_t>(num_special);
  parts.pattern = string_at(config, "pattern", path + ": config");
  parts.ranks = TokenTable(vocabulary.size());
  std::string bytes;
  // The list is longer than the vocabulary; only its first part is used.
  for (int64_t i = 0; i < vocab_size - num_special; ++i) {
    const Json& entry = vocabulary[static_cast<size_t>(i)];
    const std::string where = fmt::format("{}: vocab[{}]", path, i);
    if (integer_at(entry, "rank", where) != i) base::fail("{}: its rank is not {}", where, i);
    if (!decode_base64(string_at(entry, "token_bytes", where), bytes)) base::fail("{}: broken base64", where);
    parts.ranks.add(bytes, i, where);
  }
  // Files before version 7 leave the names out; these are theirs.
  std::vector<std::string> names = {"<unk>",
                                    "<s>",
                                    "</s>",
                                    "[INST]",
                                    "[/INST]",
                                    "[AVAILABLE_TOOLS]",
                                    "[/AVAILABLE_TOOLS]",
                                    "[TOOL_RESULTS]",
                                    "[/TOOL_RESULTS]",
                                    "[TOOL_CALLS]",
                                    "[IMG]",
                                    "<pad>",
                                    "[IMG_BREAK]",
                                    "[IMG_END]",
                                    "[PREFIX]",
                                    "[MIDDLE]",
                                    "[SUFFIX]",
                                    "[SYSTEM_PROMPT]",
                                    "[/SYSTEM_PROMPT]",
                                    "[TOOL_CONTENT]"};
  if (const Json* list = find(json, "special_tokens")) {
    if (!list->is_array()) base::fail("{}: special_tokens: an array is needed", path);
    names.clear();
    for (const Json& entry : *list) {
      const std::string where = fmt::format("{}: special_tokens[{}]", path, names.size());
      if (integer_at(entry, "rank", where) != static_cast<int64_t>(names.size()))
        base::fail("{}: its rank is not {}", where, names.size());
      names.push_back(string_at(entry, "token_str", where));
    }
  }
  if (static_cast<int64_t>(names.size()) > num_special) {
    if (find(json, "special_tokens") != nullptr)
      base::fail("{}: {} special tokens where {} are announced", path, names.size(), num_special);
    names.resize(static_cast<size_t>(num_special));
  }
  while (static_cast<int64_t>(names.size()) < num_special)
    names.push_back(fmt::format("<SPECIAL_{}>", names.size()));
  parts.special_tokens = numbered(std::move(names), 0);
  parts.begin_of_text = "<s>";
  parts.end_of_document = "</s>";
  return std::make_unique<RankTokenizer>(std::move(parts));
}

}  // namespace pleat::data
