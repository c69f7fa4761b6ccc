// PREFIX.json: what a dataset was made from and with. Datasets of other programs have none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pleat::data {

struct DatasetInfo {
  struct Source {
    std::string path = {};
    int64_t bytes = 0;
    bool operator==(const Source&) const = default;
  };

  std::string tokenizer = {};         // as open_tokenizer takes it, good from any folder
  std::string tokenizer_kind = {};    // TextTokenizer::kind()
  std::string tokenizer_sha256 = {};  // TextTokenizer::tokenizer_hash()
  int64_t vocab_size = 0;
  int64_t end_of_document = 0;
  int64_t num_documents = 0;
  int64_t num_tokens = 0;  // end-of-document tokens included
  int64_t num_bytes = 0;   // of the documents' text; for chat, of what the messages say
  // Tokens that count in the loss, where PREFIX.mask.bin says which; nothing: all do.
  std::optional<int64_t> num_loss_tokens = {};
  std::string chat_template = {};  // name of the template; empty: no conversations
  std::vector<Source> sources = {};

  bool operator==(const DatasetInfo&) const = default;
};

std::string to_json(const DatasetInfo& info);
// Throws naming `path` and the member that is missing or wrong. The text is hostile.
DatasetInfo dataset_info_from_json(std::string_view text, const std::string& path);

// Of `prefix`.json; nothing where there is no such file.
std::optional<DatasetInfo> read_dataset_info(const std::string& prefix);

}  // namespace pleat::data
