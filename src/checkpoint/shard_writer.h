// Files of a checkpoint, each made durable before the call returns.
#pragma once

#include <functional>
#include <string>

#include "base/vfs.h"
#include "checkpoint/share.h"

namespace pleat::checkpoint {

// Calls `fill` on a new file, then makes its bytes durable. A failed fsync or close tells nothing about what
// is on the disk and may "succeed" when repeated, so the file is thrown away and another one takes its name.
void write_durably(base::Vfs& vfs, const std::string& path, int max_attempts,
                   const std::function<void(base::File&)>& fill);

// Writes the shards of the manifest that hold `share`, whose stream begins at `start` in that of the checkpoint.
// Whatever they hold, their names and lengths are those of the manifest.
void write_shards(base::Vfs& vfs, const std::string& directory, const Manifest& manifest, int64_t start,
                  ShareStream& share, int max_attempts);

}  // namespace pleat::checkpoint
