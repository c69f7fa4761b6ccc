// The end of every save: a table of contents for files that lie in a temporary directory, and the rename that makes
// them a checkpoint.
#pragma once

#include <functional>
#include <string>

#include "base/vfs.h"
#include "checkpoint/load.h"
#include "checkpoint/manifest.h"
#include "checkpoint/save.h"

namespace pleat::checkpoint {

// Writes MANIFEST, makes it and all names in `temporary` durable, and opens what is there. Returns the length of the
// text.
int64_t write_manifest(base::Vfs& vfs, const std::string& temporary, const Manifest& manifest,
                       int max_file_attempts);

// `temporary` becomes `path`, both in `directory`: the commit point. What throws has committed nothing, or says that it
// may not last. Where the rename itself fails, `temporary` is removed.
void commit(base::Vfs& vfs, const std::string& directory, const std::string& temporary,
            const std::string& path);

// True when `directory` holds step `step` already, `verify` finds it whole and `is_same` this very state: then `result`
// says so. False, with a warning, when it is damaged; throws when it holds another state.
bool is_there_already(base::Vfs& vfs, const std::string& directory, int64_t step,
                      const std::function<void(const Loaded&)>& verify,
                      const std::function<bool(const Loaded&)>& is_same, SaveResult& result);

// Frees the space at once if it can; the next save tries again.
void discard(base::Vfs& vfs, const std::string& temporary);

// A directory of checkpoints, which is made where there is none.
void make_directory(base::Vfs& vfs, const std::string& directory);

}  // namespace pleat::checkpoint
