#include "checkpoint/best.h"

#include <charconv>
#include <cmath>

#include "checkpoint/directory.h"
#include "checkpoint/retain.h"

namespace pleat::checkpoint {

namespace {

constexpr int64_t kMaxBestBytes = 128;

std::optional<Best> parse_best(std::string_view text) {
  if (!text.ends_with('\n')) return std::nullopt;
  text.remove_suffix(1);
  const size_t space = text.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const std::optional<int64_t> step = step_of(text.substr(0, space));
  Best best;
  const std::string_view number = text.substr(space + 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), best.loss);
  if (!step || error != std::errc{} || end != number.data() + number.size() || !std::isfinite(best.loss))
    return std::nullopt;
  best.step = *step;
  return best;
}

}  // namespace

std::optional<Best> read_best(base::Vfs& vfs, const std::string& directory) {
  const std::string path = base::join_path(directory, kBestName);
  if (!vfs.stat(path)) return std::nullopt;
  std::optional<Best> best;
  try {
    best = parse_best(base::read_file(vfs, path, kMaxBestBytes));
  } catch (const base::Error&) {
    return std::nullopt;
  }
  if (best && !vfs.stat(base::join_path(directory, step_name(best->step)))) return std::nullopt;
  return best;
}

void write_best(base::Vfs& vfs, const std::string& directory, const Best& best,
                std::vector<std::string>& taken, std::vector<std::string>& warnings) {
  const std::string text = fmt::format("{} {}\n", step_name(best.step), best.loss);
  replace_hint(vfs, directory, kBestName, text, taken, warnings);
}

}  // namespace pleat::checkpoint
