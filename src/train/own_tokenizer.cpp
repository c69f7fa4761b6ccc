#include "train/own_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/replace_file.h"
#include "config/run_files.h"

namespace pleat::train {
namespace {

namespace fs = std::filesystem;

constexpr char kFolder[] = "tokenizer";
constexpr char kFromName[] = "copied_from.txt";
constexpr uintmax_t kMostBytes = uintmax_t{512} << 20;

// What tokenizers read beside their main file, and main files themselves.
bool belongs(const fs::path& file) {
  const std::string name = file.filename().string();
  static constexpr const char* kNames[] = {"tokenizer.json",      "tokenizer_config.json",
                                           "tokenizer.model",     "special_tokens_map.json",
                                           "added_tokens.json",   "vocab.json",
                                           "vocab.txt",           "merges.txt",
                                           "tekken.json",         "tiktoken.model",
                                           "chat_template.jinja", "chat_template.json",
                                           "config.json",         "generation_config.json"};
  return file.extension() == ".tiktoken" ||
         std::any_of(std::begin(kNames), std::end(kNames), [&](const char* known) { return name == known; });
}

std::string contents(const fs::path& path) {
  std::error_code error;
  if (const uintmax_t size = fs::file_size(path, error); error || size > kMostBytes)
    base::fail("'{}' cannot be copied into the run folder: {}", path.string(),
               error ? error.message() : fmt::format("it has {} bytes, at most {} are", size, kMostBytes));
  std::ifstream in(path, std::ios::binary);
  std::stringstream out;
  out << in.rdbuf();
  if (!in) base::fail_with(base::ExitCode::Storage, "cannot read '{}'", path.string());
  return out.str();
}

}  // namespace

config::Config with_own_tokenizer(const config::Config& config, bool write) {
  config::Config out = config;
  std::string& tokenizer = out.data.tokenizer;
  if (tokenizer == "byte" || tokenizer.empty()) return out;
  const std::string named = config::in_folder(config, config.log.run_dir).data.tokenizer;
  const size_t colon = named.find(':');
  const bool family = colon != std::string::npos && named.find('/') > colon;
  const std::string front = family ? named.substr(0, colon + 1) : "";
  const fs::path source = named.substr(front.size());
  if (!source.is_absolute()) return out;  // inside already

  const fs::path copy = fs::path(config.log.run_dir) / kFolder;
  const bool is_folder = fs::is_directory(source);
  std::ifstream stamp(copy / kFromName);
  std::string from;
  std::getline(stamp, from);
  const bool copied = from == named;
  if (!copied && write) {
    if (!is_folder && !fs::is_regular_file(source)) base::fail("data.tokenizer = \"{}\" is not there", named);
    fs::create_directories(copy);
    const fs::path folder = is_folder ? source : source.parent_path();
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
      if (entry.is_regular_file() && (belongs(entry.path()) || entry.path() == source))
        base::replace_file((copy / entry.path().filename()).string(), contents(entry.path()));
    base::replace_file((copy / kFromName).string(), named + "\n");
  }
  // A folder is named as one; of a file the copy is found by its name.
  const fs::path inside = copy / source.filename();
  tokenizer = front + (fs::is_regular_file(inside) ? inside.string() : copy.string());
  if (const auto asked = out.asked.find("data.tokenizer"); asked != out.asked.end())
    asked->second = "\"" + tokenizer + "\"";
  return out;
}

}  // namespace pleat::train
