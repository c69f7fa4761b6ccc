// Algorithms of dense products kept per GPU and library, outside any run: a second start of any model measures only
// what it never met. A run still keeps its own (matmul_choices.h), so that its resumes do not depend on this file.
#pragma once

#include <string>

#include "train/matmul_choices.h"

namespace pleat::train {

// $PLEAT_CACHE_DIR, else $XDG_CACHE_HOME/pleat, else $HOME/.cache/pleat; empty: none of them is set.
std::string cache_folder();
// The file for this GPU and these libraries.
std::string choices_cache_path(const std::string& folder, const kernels::MatmulMachine& machine);

// What the file holds for this machine; nothing where there is no file. A file that cannot be used is passed over,
// and `line` says why.
SavedChoices read_choices_cache(const std::string& path, const kernels::MatmulMachine& machine,
                                std::string& line);

// Adds choices to the file, which keeps its own where both know a product; `path`.lock is held meanwhile, so that starts at
// the same time lose nothing of each other. A folder that cannot be written is no
// fault of a run: returns a line for the log, empty when all went well or nothing was new.
std::string add_to_choices_cache(const std::string& path, const SavedChoices& now);

}  // namespace pleat::train
