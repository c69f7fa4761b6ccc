// A run keeps a copy of the tokenizer it uses, so that its folder alone is enough to go on, generate and
// export elsewhere.
#pragma once

#include "config/config.h"

namespace pleat::train {

// A copy whose data.tokenizer lies in log.run_dir: RUN/tokenizer, where the files are copied once ("byte" and
// what is there already stay). `write` is false on ranks that find what the leader copied. Throws when the
// files cannot be read.
config::Config with_own_tokenizer(const config::Config& config, bool write);

}  // namespace pleat::train
