#include "checkpoint/commit.h"

#include "checkpoint/damage.h"
#include "checkpoint/shard_writer.h"

namespace pleat::checkpoint {

int64_t write_manifest(base::Vfs& vfs, const std::string& temporary, const Manifest& manifest,
                       int max_file_attempts) {
  const std::string text = print_manifest(manifest);
  write_durably(vfs, base::join_path(temporary, kManifestName), max_file_attempts,
                [&](base::File& file) { file.write(std::as_bytes(std::span(text))); });
  vfs.fsync_dir(temporary);
  // Exactly these files, of these lengths.
  if (const Loaded loaded = open(vfs, temporary); loaded.manifest_sha256() != digest_of_manifest(text))
    base::fail_with(base::ExitCode::Storage, "{}: another manifest was written", loaded.path());
  return static_cast<int64_t>(text.size());
}

bool is_there_already(base::Vfs& vfs, const std::string& directory, int64_t step,
                      const std::function<void(const Loaded&)>& verify,
                      const std::function<bool(const Loaded&)>& is_same, SaveResult& result) {
  try {
    const Loaded loaded = open_step(vfs, directory, step);
    verify(loaded);
    if (is_same(loaded)) {
      vfs.fsync_dir(directory);  // whoever renamed it may have died before this
      result.already_there = true;
      result.state_sha256 = loaded.state_sha256();
      result.manifest_sha256 = base::to_hex(loaded.manifest_sha256());
      return true;
    }
  } catch (const base::Error& error) {
    if (!is_damage(error)) throw;
    result.warnings.push_back(fmt::format("damaged checkpoint replaced: {}", error.what()));
    return false;
  }
  base::fail("'{}' exists and holds another state; refusing to replace it", result.path);
}

void commit(base::Vfs& vfs, const std::string& directory, const std::string& temporary,
            const std::string& path) {
  try {
    vfs.rename(temporary, path);
  } catch (const base::Error&) {
    discard(vfs, temporary);
    throw;
  }
  try {
    vfs.fsync_dir(directory);
  } catch (const base::Error& error) {
    // Not known to be durable, so it must not be seen. Its files stay until a later fsync of the directory
    // holds: the rename may still be the one that survives.
    try {
      vfs.rename(path, temporary);
    } catch (const base::Error& second) {
      base::fail_with(base::ExitCode::Storage, "{}; '{}' is complete but may not survive a power loss ({})",
                      error.what(), path, second.what());
    }
    throw;
  }
}

void discard(base::Vfs& vfs, const std::string& temporary) {
  try {
    vfs.remove_all(temporary);
  } catch (const std::exception&) {
    // The error that led here is the one to report.
  }
}

void make_directory(base::Vfs& vfs, const std::string& directory) {
  const std::optional<base::FileStat> found = vfs.stat(directory);
  if (!found)
    vfs.mkdir(directory);
  else if (found->kind != base::FileKind::Directory)
    base::fail("cannot save checkpoints in '{}': not a directory", directory);
}

}  // namespace pleat::checkpoint
