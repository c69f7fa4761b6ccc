// Reads files of ranks: tiktoken's ("base64 rank" per line) and Mistral's tekken.json.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/rank_tokenizer.h"

namespace pleat::data {

// A rank file holds no pattern and no special tokens; these come from whoever published it.
struct RankFileFamily {
  std::string name = {};  // empty: not one of the known ones
  std::string pattern = {};
  std::vector<std::pair<std::string, int32_t>> special_tokens = {};
  std::string begin_of_text = {};
  std::string end_of_document = {};
  bool text_makes_special_tokens = false;
};

// Their names, as messages list them.
inline constexpr std::array<std::string_view, 7> kRankFileFamilies = {
    "r50k", "cl100k", "o200k", "o200k_harmony", "qwen", "llama3", "kimi"};

// "r50k", "cl100k", "o200k", "o200k_harmony" (GPT-OSS), "qwen", "llama3", "kimi". `num_ranks` places special
// tokens that follow the ranks; those of kimi stand in a file of their own (kimi_files.h). Throws with the
// list of names for any other.
RankFileFamily rank_file_family(std::string_view name, int64_t num_ranks);

// How many ranks the file holds.
int64_t num_ranks(std::string_view file, const std::string& path);

// `file` is the whole file, `path` its name in messages; `family` is a name rank_file_family knows.
std::unique_ptr<RankTokenizer> read_tiktoken(std::string_view file, const std::string& path,
                                             std::string_view family);
// With a pattern and special tokens of one's own.
std::unique_ptr<RankTokenizer> read_tiktoken(std::string_view file, const std::string& path,
                                             RankFileFamily family);

std::unique_ptr<RankTokenizer> read_tekken(std::string_view file, const std::string& path);

}  // namespace pleat::data
