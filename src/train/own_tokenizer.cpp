#include "train/own_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/regular_file.h"
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

std::string came_from(const fs::path& copy) {
  base::require_regular((copy / kFromName).string());
  std::ifstream stamp(copy / kFromName);
  std::string from;
  std::getline(stamp, from);
  return from;
}

fs::path numbered(const std::string& run_folder, int64_t number) {
  return fs::path(run_folder) / (number == 1 ? kFolder : fmt::format("{}-{}", kFolder, number));
}

bool is_named(const fs::path& copy, const Names& names) {
  const std::string whole = whole_name(copy.string());
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name == whole || name.starts_with(whole + "/"); });
}

}  // namespace

OwnTokenizer::Files OwnTokenizer::files_of(const std::string& source) {
  Files out;
  const bool is_folder = fs::is_directory(source);
  if (!is_folder && !fs::is_regular_file(source)) return out;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(is_folder ? fs::path(source) : fs::path(source).parent_path()))
    if (entry.is_regular_file() && (belongs(entry.path()) || entry.path() == source))
      out.emplace_back(entry.path().filename().string(), contents(entry.path()));
  std::sort(out.begin(), out.end());
  return out;
}

OwnTokenizer::Files OwnTokenizer::files_in(const std::string& copy) {
  Files out;
  for (const fs::directory_entry& entry : fs::directory_iterator(copy))
    if (entry.is_regular_file() && entry.path().filename() != kFromName)
      out.emplace_back(entry.path().filename().string(), contents(entry.path()));
  std::sort(out.begin(), out.end());
  return out;
}

OwnTokenizer::OwnTokenizer(const config::Config& config, bool keep, const Names& in_use)
    : read_from_(config.data.tokenizer), name_(config.data.tokenizer) {
  if (read_from_ == "byte" || read_from_.empty()) return;
  const std::string& run = config.log.run_dir;
  std::string named = config::in_folder(config, run).data.tokenizer;
  if (!fs::path(path_of_tokenizer(named)).is_absolute()) {  // inside already
    const std::string from = came_from(fs::path(run) / *fs::path(path_of_tokenizer(named)).begin());
    // Nothing was trained with the copy: it follows what it was made from.
    if (keep || from.empty() || !fs::exists(path_of_tokenizer(from))) return;
    read_from_ = named = from;
  }
  const fs::path source = path_of_tokenizer(named);
  const std::string family = named.substr(0, named.size() - source.string().size());
  const auto name_in = [&](const fs::path& copy) {
    const fs::path file = copy / source.filename();  // a folder is named as one
    return family + (fs::is_directory(source) || (!fs::exists(source) && !fs::is_regular_file(file))
                         ? copy.string()
                         : file.string());
  };
  files_ = files_of(source.string());
  fs::path own;  // the copy of this source: the one in use, else any
  for (int64_t i = 1; fs::exists(numbered(run, i)); ++i)
    if (const fs::path copy = numbered(run, i);
        came_from(copy) == named && (own.empty() || (is_named(copy, in_use) && !is_named(own, in_use))))
      own = copy;
  if (files_.empty() && own.empty())
    base::fail("data.tokenizer = \"{}\" {} (looked for '{}')", read_from_,
               fs::exists(source) ? "holds no tokenizer" : "is not there", source.string());
  if (!own.empty() && (keep || files_.empty())) {
    if (files_.empty() || files_ != files_in(own.string()))
      note_ = fmt::format("tokenizer {} {}; the run goes on with its copy of it, {}", read_from_,
                          files_.empty() ? "is not there any more" : "has changed since it was copied",
                          own.string());
    read_from_ = name_ = name_in(own);
    return;
  }
  for (int64_t i = 1;; ++i) {
    const fs::path copy = numbered(run, i);
    const std::string from = came_from(copy);
    const bool there = fs::exists(copy);
    if (there && from == named && files_ == files_in(copy.string())) {
      name_ = name_in(copy);
      return;
    }
    // One without a stamp was made by somebody else.
    if (there && (from.empty() || is_named(copy, in_use))) continue;
    copy_ = copy.string();
    name_ = name_in(copy);
    files_.emplace_back(kFromName, named + "\n");
    return;
  }
}

void OwnTokenizer::write() const {
  if (copy_.empty()) return;
  const fs::path part = copy_ + ".part";
  fs::remove_all(part);
  fs::create_directories(part);
  for (const auto& [name, text] : files_) base::replace_file((part / name).string(), text);
  fs::remove_all(copy_);
  fs::rename(part, copy_);
}

config::Config with_tokenizer(const config::Config& config, const std::string& tokenizer) {
  config::Config out = config;
  out.data.tokenizer = tokenizer;
  if (const auto asked = out.asked.find("data.tokenizer"); asked != out.asked.end())
    asked->second = "\"" + tokenizer + "\"";
  return out;
}

}  // namespace pleat::train
