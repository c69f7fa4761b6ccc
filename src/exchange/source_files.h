// The small files of a model folder beside its weights: config.json, generation settings, tokenizer. They are
// carried along unchanged, so that an exported model is used with the tokenizer it was trained with.
#pragma once

#include <string>
#include <vector>

namespace pleat::exchange {

struct SmallFile {
  std::string name, text;
};

// Every known small file that `folder` has. Links and files over 256 MiB are refused.
std::vector<SmallFile> read_small_files(const std::string& folder);
// Nothing when there is none of that name.
const SmallFile* find(const std::vector<SmallFile>& files, const std::string& name);

// The small files of `folder` that belong to its tokenizer.
std::vector<SmallFile> read_tokenizer_files(const std::string& folder);
bool is_tokenizer_file(const SmallFile& file);
// Whether data::open_tokenizer finds a tokenizer in a folder of these files.
bool has_tokenizer(const std::vector<SmallFile>& files);
// Where an imported run keeps the small files of its model.
std::string copied_files_folder(const std::string& run_folder);

// Writes and syncs `folder`/name; a failure is a storage error.
void write_small_file(const std::string& folder, const SmallFile& file);

// Says why `folder` is no model: it is not there, or neither a run nor a model folder. `option` comes first.
[[noreturn]] void fail_no_model(const std::string& option, const std::string& folder);

// Throws unless `folder` does not exist or is empty; `what` says what is to be written there. Temporary files of a process
// that is gone do not count, and are removed.
void require_new_folder(const std::string& folder, const char* what);

}  // namespace pleat::exchange
