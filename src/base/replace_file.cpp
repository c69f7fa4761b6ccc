#include "base/replace_file.h"

#include "base/posix_vfs.h"

namespace pleat::base {

void replace_file(const std::string& path, std::string_view text) {
  PosixVfs vfs;
  const std::string temporary = path + ".tmp";
  if (vfs.stat(temporary)) vfs.unlink(temporary);
  File file = File::create(vfs, temporary);
  file.write(std::as_bytes(std::span(text)));
  file.fsync();
  file.close();
  vfs.rename(temporary, path);
  vfs.fsync_dir(parent_path(path));
}

}  // namespace pleat::base
