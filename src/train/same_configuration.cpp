#include "train/same_configuration.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"

namespace pleat::train {
namespace {

using Words = std::array<char, 480>;

std::string text_of(const config::Config& config) {
  std::string out;
  for (const config::ResolvedRow& row : config::resolved(config))
    if (row.key != "device.threads") out += row.key + " = " + row.used + "\n";
  return out;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    out.push_back(text.substr(at, end - at));
    at = end == std::string::npos ? text.size() : end + 1;
  }
  return out;
}

// The first line that is another here; "": none.
std::string difference(const std::string& first, const std::string& mine, int rank) {
  const std::vector<std::string> theirs = lines_of(first), ours = lines_of(mine);
  for (size_t i = 0; i < std::max(theirs.size(), ours.size()); ++i) {
    const std::string a = i < theirs.size() ? theirs[i] : "nothing",
                      b = i < ours.size() ? ours[i] : "nothing";
    if (a != b) return fmt::format("rank {} has {}, rank 0 has {}", rank, b, a);
  }
  return "";
}

}  // namespace

void require_same_configuration(comm::Endpoint& endpoint, const config::Config& config,
                                const std::string& beside) {
  std::vector<int> ranks(static_cast<size_t>(endpoint.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::unique_ptr<comm::Communicator> all = endpoint.group("configuration", ranks);
  const int me = endpoint.rank(), size = endpoint.size();
  constexpr const char* kStage = "start.configuration";
  const std::string mine = text_of(config) + beside;
  Words words{};
  if (me != 0) {
    int64_t length = 0;
    all->receive(kStage, 0, 0, std::as_writable_bytes(std::span(&length, 1)));
    std::string first(static_cast<size_t>(length), '\0');
    all->receive(kStage, 0, 0, std::as_writable_bytes(std::span(first)));
    const std::string differs = difference(first, mine, me);
    std::memcpy(words.data(), differs.data(), std::min(differs.size(), words.size() - 1));
    all->send(kStage, 0, 0, std::as_bytes(std::span(words)));
    all->receive(kStage, 0, 0, std::as_writable_bytes(std::span(words)));
  } else {
    const auto length = static_cast<int64_t>(mine.size());
    for (int r = 1; r < size; ++r) {
      all->send(kStage, r, 0, std::as_bytes(std::span(&length, 1)));
      all->send(kStage, r, 0, std::as_bytes(std::span(mine)));
    }
    for (int r = 1; r < size; ++r) {
      Words said{};
      all->receive(kStage, r, 0, std::as_writable_bytes(std::span(said)));
      if (words[0] == 0) words = said;
    }
    for (int r = 1; r < size; ++r) all->send(kStage, r, 0, std::as_bytes(std::span(words)));
  }
  if (words[0] != 0) base::fail("all ranks of a run need the same configuration: {}", words.data());
}

}  // namespace pleat::train
