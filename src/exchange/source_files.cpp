#include "exchange/source_files.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>

#include "base/error.h"
#include "safetensors/descriptor.h"
#include "safetensors/new_file.h"

namespace pleat::exchange {
namespace {

constexpr const char* kNames[] = {
    "config.json",         "generation_config.json",
    "tokenizer.json",      "tokenizer_config.json",
    "tokenizer.model",     "special_tokens_map.json",
    "added_tokens.json",   "vocab.json",
    "vocab.txt",           "merges.txt",
    "chat_template.jinja", "chat_template.json",
    "tekken.json",         "qwen.tiktoken",
    "tiktoken.model",
};
constexpr int64_t kMostBytes = int64_t{256} << 20;

}  // namespace

std::vector<SmallFile> read_small_files(const std::string& folder) {
  const safetensors::Descriptor opened = safetensors::open_folder(folder);
  std::vector<SmallFile> out;
  for (const char* name : kNames) {
    const std::string path = safetensors::join(folder, name);
    if (!safetensors::exists(opened, name, path)) continue;
    const safetensors::OpenedFile file = safetensors::open_regular(opened, name, path);
    if (file.size > kMostBytes)
      base::fail("{} has {} bytes; at most {} are copied", path, file.size, kMostBytes);
    SmallFile& small = out.emplace_back(SmallFile{name, std::string(static_cast<size_t>(file.size), '\0')});
    safetensors::read_exactly(file.descriptor, std::as_writable_bytes(std::span(small.text)), 0, path);
  }
  return out;
}

const SmallFile* find(const std::vector<SmallFile>& files, const std::string& name) {
  for (const SmallFile& f : files)
    if (f.name == name) return &f;
  return nullptr;
}

bool is_tokenizer_file(const SmallFile& file) {
  return file.name != "config.json" && file.name != "generation_config.json";
}

std::vector<SmallFile> read_tokenizer_files(const std::string& folder) {
  std::vector<SmallFile> out = read_small_files(folder);
  std::erase_if(out, [](const SmallFile& f) { return !is_tokenizer_file(f); });
  return out;
}

bool has_tokenizer(const std::vector<SmallFile>& files) {
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "tekken.json", "qwen.tiktoken", "tiktoken.model"})
    if (find(files, name)) return true;
  return false;
}

std::string copied_files_folder(const std::string& run_folder) { return run_folder + "/source"; }

void write_small_file(const std::string& folder, const SmallFile& file) {
  const std::shared_ptr<const safetensors::OutputFolder> opened = safetensors::OutputFolder::open(folder);
  safetensors::NewFile out(opened, file.name, static_cast<int64_t>(file.text.size()));
  out.write(std::as_bytes(std::span(file.text)), 0);
  out.sync();
  out.commit();
  opened->sync();
}

void fail_no_model(const std::string& option, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::exists(folder, ignored))
    base::fail(
        "{}'{}' does not exist (looked for '{}'); needed is a run folder or a Hugging Face model folder",
        option, folder, fs::absolute(folder).lexically_normal().string());
  if (!fs::is_directory(folder, ignored))
    base::fail("{}'{}' is a file; needed is a run folder or a Hugging Face model folder", option, folder);
  base::fail(
      "{}'{}' is neither a run folder (it has no config.toml) nor a Hugging Face model folder (it has no "
      "config.json)",
      option, folder);
}

void require_new_folder(const std::string& folder, const char* what) {
  namespace fs = std::filesystem;
  if (!fs::exists(folder)) return;
  if (!fs::is_directory(folder))
    base::fail("'{}' is not a folder; {} needs a new or empty one", folder, what);
  // What a killed process left under names of its own (safetensors/new_file.h).
  std::vector<fs::path> leftovers;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    int pid = 0, end = 0;
    if (std::sscanf(name.c_str(), ".pleat-%d-%*d.tmp%n", &pid, &end) != 1 ||
        end != static_cast<int>(name.size()) || pid <= 0)
      base::fail("'{}' is not empty; {} needs a new or empty folder", folder, what);
    if (pid != ::getpid() && (::kill(pid, 0) == 0 || errno == EPERM))
      base::fail("process {} is writing into '{}'; {} needs a new or empty folder", pid, folder, what);
    leftovers.push_back(entry.path());
  }
  for (const fs::path& leftover : leftovers) fs::remove(leftover);
}

}  // namespace pleat::exchange
