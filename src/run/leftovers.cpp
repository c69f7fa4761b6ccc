#include "run/leftovers.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <vector>

namespace pleat::run {
namespace {

namespace fs = std::filesystem;

// 0 where the name is not of that form.
int pid_in(std::string_view name) {
  constexpr std::string_view kMark = ".tmp-";
  const size_t mark = name.rfind(kMark);
  if (mark == std::string_view::npos) return 0;
  const char* end = name.data() + name.size();
  int pid = 0;
  const auto first = std::from_chars(name.data() + mark + kMark.size(), end, pid);
  if (first.ec != std::errc{} || first.ptr == end || *first.ptr != '-' || pid <= 0) return 0;
  int64_t number = -1;
  const auto second = std::from_chars(first.ptr + 1, end, number);
  return second.ec == std::errc{} && second.ptr == end && number >= 0 ? pid : 0;
}

bool is_gone(int pid) { return pid == ::getpid() || (::kill(pid, 0) != 0 && errno == ESRCH); }

}  // namespace

void remove_leftovers(const std::string& folder) {
  std::error_code ignored;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(folder, ignored), end; it != end; it.increment(ignored)) {
    const int pid = pid_in(it->path().filename().native());
    if (pid > 0 && fs::is_regular_file(it->symlink_status(ignored)) && is_gone(pid))
      found.push_back(it->path());
  }
  for (const fs::path& path : found) fs::remove(path, ignored);
}

}  // namespace pleat::run
