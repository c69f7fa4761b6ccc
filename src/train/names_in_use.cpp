#include "train/names_in_use.h"

#include <filesystem>

#include "base/posix_vfs.h"
#include "checkpoint/directory.h"
#include "checkpoint/load.h"
#include "config/run_files.h"

namespace pleat::train {

std::string whole_name(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().string();
}

std::string path_of_tokenizer(const std::string& tokenizer) {
  const size_t colon = tokenizer.find(':');
  const bool family = colon != std::string::npos && tokenizer.find('/') > colon;
  return family ? tokenizer.substr(colon + 1) : tokenizer;
}

Names names_in(const config::Config& used) {
  Names out;
  const auto add = [&](const std::string& path) {
    if (!path.empty()) out.insert(whole_name(path));
  };
  add(used.data.train);
  add(used.data.valid);
  for (const std::string& source : used.data.sources) add(source);
  if (used.data.tokenizer != "byte") add(path_of_tokenizer(used.data.tokenizer));
  return out;
}

Names names_in_use(const config::Config& resolved) {
  Names out;
  const std::string &folder = resolved.log.run_dir, &checkpoints = resolved.checkpoint.dir;
  const auto add = [&](const auto& read) {
    // What cannot be read is used by nobody.
    try {
      out.merge(names_in(read()));
    } catch (const base::Error&) {
    }
  };
  add([&] { return config::read_record(folder); });
  base::PosixVfs vfs;
  if (!vfs.stat(checkpoints)) return out;
  for (const int64_t step : checkpoint::list_checkpoints(vfs, checkpoints).steps)
    add([&] {
      const checkpoint::Loaded loaded = checkpoint::open_step(vfs, checkpoints, step);
      return config::placed(config::parse_record(loaded.text("config")), folder);
    });
  return out;
}

}  // namespace pleat::train
