#include "exchange/byte_tokenizer_files.h"

#include <nlohmann/json.hpp>

#include "data/byte_tokenizer.h"
#include "data/tokenizer/byte_alphabet.h"

namespace pleat::exchange {

using nlohmann::ordered_json;

std::vector<SmallFile> byte_tokenizer_files(int64_t max_length) {
  using data::ByteTokenizer;
  ordered_json vocabulary = ordered_json::object();
  for (int byte = 0; byte < 256; ++byte) {
    const char one = static_cast<char>(byte);
    std::string character;
    data::append_byte_characters(character, std::string_view(&one, 1));
    vocabulary[character] = byte;
  }
  // use_regex off: where a text is cut makes no difference to bytes.
  const ordered_json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const ordered_json end = {{"id", ByteTokenizer::kEndOfDocument},
                            {"content", ByteTokenizer::kEndSpelling},
                            {"single_word", false},
                            {"lstrip", false},
                            {"rstrip", false},
                            {"normalized", false},
                            {"special", true}};
  const ordered_json file = {{"version", "1.0"},
                             {"truncation", nullptr},
                             {"padding", nullptr},
                             {"added_tokens", ordered_json::array({end})},
                             {"normalizer", nullptr},
                             {"pre_tokenizer", bytes},
                             {"post_processor", nullptr},
                             {"decoder", bytes},
                             {"model",
                              {{"type", "BPE"},
                               {"dropout", nullptr},
                               {"unk_token", nullptr},
                               {"continuing_subword_prefix", nullptr},
                               {"end_of_word_suffix", nullptr},
                               {"fuse_unk", false},
                               {"byte_fallback", false},
                               {"ignore_merges", false},
                               {"vocab", vocabulary},
                               {"merges", ordered_json::array()}}}};
  const ordered_json settings = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                 {"eos_token", ByteTokenizer::kEndSpelling},
                                 {"clean_up_tokenization_spaces", false},
                                 {"model_max_length", max_length}};
  return {{"tokenizer.json", file.dump(2) + "\n"}, {"tokenizer_config.json", settings.dump(2) + "\n"}};
}

}  // namespace pleat::exchange
