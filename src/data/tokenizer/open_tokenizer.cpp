#include "data/tokenizer/open_tokenizer.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "data/byte_tokenizer.h"
#include "data/mapped_file.h"
#include "data/tokenizer/hugging_face_tokenizer.h"
#include "data/tokenizer/json_fields.h"
#include "data/tokenizer/kimi_files.h"
#include "data/tokenizer/rank_files.h"
#include "data/tokenizer/sentencepiece_tokenizer.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = size_t{512} << 20;

std::string read_whole(const std::string& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (bytes.size() > kMaxFileBytes)
    base::fail("{}: {} bytes; tokenizer files of at most {} are supported", path, bytes.size(),
               kMaxFileBytes);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// The file a folder's tokenizer is in.
std::string file_in(const fs::path& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tekken.json", "tiktoken.model"})
    if (is_file(folder / name)) return (folder / name).string();
  std::vector<std::string> ranks;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (at->path().extension() == ".tiktoken") ranks.push_back(at->path().string());
  if (error)
    base::fail_with(base::ExitCode::Storage, "{}: cannot list the folder: {}", folder.string(),
                    error.message());
  if (ranks.size() == 1) return ranks[0];
  if (ranks.size() > 1)
    base::fail("{}: holds {} rank files; name one of them", folder.string(), ranks.size());
  base::fail("{}: holds no tokenizer.json, tokenizer.model, tekken.json, tiktoken.model or .tiktoken file",
             folder.string());
}

// A token as Hugging Face's settings write it: its spelling, or an object with "content".
std::string spelling(const Json* value, const std::string& where) {
  if (value == nullptr) return {};
  if (value->is_string()) return value->get<std::string>();
  return string_at(*value, "content", where);
}

// The spelling of the token with this id in a tokenizer.json.
std::string token_with_id(std::string_view file, int64_t id, const std::string& path) {
  const Json json = parse_json(file, path);
  if (const Json* added = find(json, "added_tokens"); added != nullptr && added->is_array())
    for (const Json& token : *added)
      if (find(token, "id") != nullptr && integer_at(token, "id", path) == id)
        return string_at(token, "content", path);
  if (const Json* model = find(json, "model"))
    if (const Json* vocabulary = find(*model, "vocab"); vocabulary != nullptr && vocabulary->is_object())
      for (const auto& item : vocabulary->items())
        if (item.value() == id) return item.key();
  base::fail("{}: config.json beside it ends documents with id {}, which it lacks", path, id);
}

std::string end_token_beside(std::string_view file, const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::string beside = (folder / name).string();
    if (!is_file(beside)) continue;
    const Json json = parse_json(read_whole(beside), beside);
    if (std::string token = spelling(find(json, "eos_token"), beside + ": eos_token"); !token.empty())
      return token;
  }
  const std::string beside = (folder / "config.json").string();
  if (!is_file(beside)) return {};
  const Json json = parse_json(read_whole(beside), beside);
  const Json* id = find(json, "eos_token_id");
  if (id != nullptr && id->is_array() && !id->empty()) id = &(*id)[0];
  if (id == nullptr || !id->is_number_integer()) return {};
  return token_with_id(file, id->get<int64_t>(), path);
}

std::string settings_beside(const std::string& path) {
  return (fs::path(path).parent_path() / "tokenizer_config.json").string();
}

std::string family_by_name(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  const std::string settings = settings_beside(path);
  if (name == "tiktoken.model" && is_file(settings) && is_kimi_settings(read_whole(settings), settings))
    return "kimi";
  if (name == "qwen.tiktoken") return "qwen";
  if (name == "cl100k_base.tiktoken") return "cl100k";
  if (name == "o200k_base.tiktoken") return "o200k";
  if (name == "r50k_base.tiktoken" || name == "gpt2.tiktoken") return "r50k";
  base::fail("{}: a rank file does not say how it cuts text; name its family ({}) in front, as in qwen:{}",
             path, fmt::join(kRankFileFamilies, ", "), path);
}

// "family:path" where the part in front is a family of rank files.
void split_family(std::string& path, std::string& family) {
  const size_t colon = path.find(':');
  if (colon == std::string::npos || !family.empty()) return;
  const std::string front = path.substr(0, colon);
  for (const std::string_view known : kRankFileFamilies)
    if (front == known) {
      family = front;
      path.erase(0, colon + 1);
      return;
    }
}

std::unique_ptr<TextTokenizer> open_ranks(const std::string& file, const std::string& path,
                                          const std::string& family) {
  if (family != "kimi") return read_tiktoken(file, path, family);
  const std::string settings = settings_beside(path);
  if (!is_file(settings))
    base::fail("{}: {} is not there to name the special tokens of this rank file", path, settings);
  return read_tiktoken(file, path, kimi_family(read_whole(settings), settings, num_ranks(file, path)));
}

std::unique_ptr<TextTokenizer> open_file(const std::string& path, const std::string& rank_family,
                                         bool end_is_asked) {
  const std::string extension = fs::path(path).extension().string();
  const bool ranks = extension == ".tiktoken" || fs::path(path).filename() == "tiktoken.model" ||
                     (!rank_family.empty() && extension != ".json");
  if (!ranks && !rank_family.empty())
    base::fail("{}: is no rank file, but the family \"{}\" is given", path, shown(rank_family));
  const std::string file = read_whole(path);
  if (ranks) return open_ranks(file, path, rank_family.empty() ? family_by_name(path) : rank_family);
  if (extension == ".json") {
    if (fs::path(path).filename().string().starts_with("tekken")) return read_tekken(file, path);
    return std::make_unique<HuggingFaceTokenizer>(
        file, path, end_is_asked ? std::string() : end_token_beside(file, path));
  }
  if (fs::path(path).filename().string().find(".model") != std::string::npos)
    return read_sentencepiece(file, path);
  base::fail("{}: neither .json nor .model nor .tiktoken; no tokenizer is known by this name", path);
}

}  // namespace

std::unique_ptr<TextTokenizer> open_tokenizer(const std::string& given, const OpenTokenizerOptions& options) {
  std::unique_ptr<TextTokenizer> tokenizer;
  if (given == "byte") {
    tokenizer = std::make_unique<ByteTokenizer>();
  } else {
    std::string path = given, family = options.rank_family;
    split_family(path, family);
    std::error_code ignored;
    tokenizer = open_file(fs::is_directory(path, ignored) ? file_in(path) : path, family,
                          !options.end_of_document.empty());
  }
  if (!options.end_of_document.empty()) tokenizer->end_documents_with(options.end_of_document);
  return tokenizer;
}

std::string absolute_tokenizer(const std::string& given) {
  if (given == "byte") return given;
  std::string path = given, family;
  split_family(path, family);
  return (family.empty() ? "" : family + ":") + fs::absolute(path).lexically_normal().string();
}

}  // namespace pleat::data
