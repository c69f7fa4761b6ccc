#include "data/dataset_info.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "data/mapped_file.h"
#include "data/tokenizer/json_fields.h"

namespace pleat::data {
namespace {

constexpr const char* kFormat = "pleat-dataset";
constexpr int64_t kVersion = 1;
constexpr size_t kMaxBytes = size_t{16} << 20;

int64_t count_at(const Json& json, const char* key, const std::string& where) {
  const int64_t value = integer_at(json, key, where);
  if (value < 0) base::fail("{}: \"{}\" is {}; 0 or more is needed", where, key, value);
  return value;
}

}  // namespace

std::string to_json(const DatasetInfo& info) {
  nlohmann::ordered_json sources = nlohmann::ordered_json::array();
  for (const DatasetInfo::Source& s : info.sources) sources.push_back({{"path", s.path}, {"bytes", s.bytes}});
  nlohmann::ordered_json json = {{"format", kFormat},
                                 {"version", kVersion},
                                 {"tokenizer",
                                  {{"path", info.tokenizer},
                                   {"kind", info.tokenizer_kind},
                                   {"sha256", info.tokenizer_sha256},
                                   {"vocab_size", info.vocab_size}}},
                                 {"end_of_document", info.end_of_document},
                                 {"documents", info.num_documents},
                                 {"tokens", info.num_tokens},
                                 {"bytes", info.num_bytes},
                                 {"loss_mask", info.num_loss_tokens.has_value()}};
  if (info.num_loss_tokens) json["loss_tokens"] = *info.num_loss_tokens;
  if (!info.chat_template.empty()) json["chat_template"] = info.chat_template;
  json["sources"] = std::move(sources);
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

DatasetInfo dataset_info_from_json(std::string_view text, const std::string& path) {
  const Json json = parse_json(text, path);
  if (!json.is_object() || find(json, "format") == nullptr || string_at(json, "format", path) != kFormat)
    base::fail("{}: does not describe a dataset: \"format\" is not \"{}\"", path, kFormat);
  if (const int64_t version = integer_at(json, "version", path); version != kVersion)
    base::fail("{}: has version {}; this program reads version {}", path, version, kVersion);
  only_keys(json,
            {"format", "version", "tokenizer", "end_of_document", "documents", "tokens", "bytes", "loss_mask",
             "loss_tokens", "chat_template", "sources"},
            path);
  DatasetInfo info;
  const Json& tokenizer = need(json, "tokenizer", path);
  info.tokenizer = string_at(tokenizer, "path", path + ": tokenizer");
  info.tokenizer_kind = string_at(tokenizer, "kind", path + ": tokenizer");
  info.tokenizer_sha256 = string_at(tokenizer, "sha256", path + ": tokenizer");
  base::Sha256Digest ignored;
  if (!base::from_hex(info.tokenizer_sha256, ignored))
    base::fail("{}: tokenizer: \"sha256\" is not 64 hex digits", path);
  info.vocab_size = count_at(tokenizer, "vocab_size", path + ": tokenizer");
  info.end_of_document = count_at(json, "end_of_document", path);
  info.num_documents = count_at(json, "documents", path);
  info.num_tokens = count_at(json, "tokens", path);
  info.num_bytes = count_at(json, "bytes", path);
  if (find(json, "loss_mask") == nullptr) base::fail("{}: \"loss_mask\" is missing", path);
  if (bool_at(json, "loss_mask", false, path)) info.num_loss_tokens = count_at(json, "loss_tokens", path);
  if (find(json, "chat_template") != nullptr) info.chat_template = string_at(json, "chat_template", path);
  const Json& sources = need(json, "sources", path);
  if (!sources.is_array()) base::fail("{}: \"sources\" is no list", path);
  for (const Json& source : sources)
    info.sources.push_back(
        {string_at(source, "path", path + ": sources"), count_at(source, "bytes", path + ": sources")});
  return info;
}

std::optional<DatasetInfo> read_dataset_info(const std::string& prefix) {
  const std::string path = prefix + ".json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  const MappedFile file(path);
  if (file.bytes().size() > kMaxBytes)
    base::fail("{}: {} bytes; a description of at most {} is read", path, file.bytes().size(), kMaxBytes);
  return dataset_info_from_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                                path);
}

}  // namespace pleat::data
