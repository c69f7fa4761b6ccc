// Prompts of `pleat generate`: texts, or token ids, from the command line and from files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "infer/vocabulary.h"

namespace pleat::infer {

struct Prompt {
  std::string text;                         // as it is shown
  std::optional<std::vector<int32_t>> ids;  // given as ids: not encoded
};

// One prompt per line that holds more than white space. Files named .jsonl or .ndjson: a JSON string, or an
// object with "prompt" (a string) or "tokens" (ids). "-" is standard input, as text. Throws naming file and line.
std::vector<Prompt> read_prompts(const std::string& path);

// "1, 2 3": ids separated by commas or spaces.
Prompt parse_ids(const std::string& text);

// `vocabulary` may be nullptr when every prompt is given as ids. Throws naming the prompt (from 1) when one
// is empty or leaves the vocabulary of `vocab_size`.
std::vector<std::vector<int32_t>> encode_prompts(const std::vector<Prompt>& prompts,
                                                 const Vocabulary* vocabulary, int64_t vocab_size);

}  // namespace pleat::infer
