#include "base/foreign_text.h"

#include <unistd.h>

#include "base/error.h"
#include "base/terminal_text.h"

namespace pleat::base {

std::string json_fault(std::string_view message) {
  constexpr size_t kMaxShown = 160;
  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing ..."
  if (const size_t end = message.find("] "); end != std::string_view::npos) message.remove_prefix(end + 2);
  if (message.starts_with("parse error at ")) message.remove_prefix(15);
  const bool cut = message.size() > kMaxShown;
  return terminal_text(message.substr(0, kMaxShown)) + (cut ? "..." : "");
}

void refuse_deep_json(std::string_view text, int most, std::string_view where) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > most) fail("{}: JSON nests deeper than {} levels", where, most);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

void refuse_lfs_pointer(std::string_view start, const std::string& path) {
  if (start.starts_with("version https://git-lfs.github.com/spec/"))
    fail("{}: a Git LFS pointer, not the file itself; fetch the file with 'git lfs pull' or download it",
         path);
}

void refuse_lfs_pointer(int descriptor, int64_t size, const std::string& path) {
  if (size > kMaxLfsPointerBytes) return;
  char start[64];
  const ssize_t got = ::pread(descriptor, start, sizeof start, 0);
  if (got > 0) refuse_lfs_pointer(std::string_view(start, static_cast<size_t>(got)), path);
}

}  // namespace pleat::base
