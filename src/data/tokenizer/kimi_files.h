// Kimi's tokenizers: a folder with ranks in tiktoken.model and the special tokens in tokenizer_config.json.
#pragma once

#include <string>
#include <string_view>

#include "data/tokenizer/rank_files.h"

namespace pleat::data {

// Whether this tokenizer_config.json goes with such a rank file.
bool is_kimi_settings(std::string_view settings, const std::string& path);

// `settings` is the whole tokenizer_config.json, `path` its name in messages. Its "added_tokens_decoder"
// names tokens behind the `num_ranks` ranks; of the 256 places there those without a name are reserved ones.
// Text that spells a special token makes it, as in the library published with the files.
RankFileFamily kimi_family(std::string_view settings, const std::string& path, int64_t num_ranks);

}  // namespace pleat::data
